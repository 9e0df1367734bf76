"""Stage two: a candidate wired into the real model against native + torch.compile, decided by the 1 % rule."""
