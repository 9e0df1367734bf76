"""What goes in and what comes out, as strict models. Imports no torch."""
