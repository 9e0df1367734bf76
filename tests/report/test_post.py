"""What is posted says what the evidence says, as kept; refuses where there is nothing to say; and is safe to paste."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

from harness.errors import UserError
from harness.report.conclusion import conclusion
from harness.report.matrix_notes import scope
from harness.report.post import post_markdown
from harness.report.pr import pr_markdown
from harness.report.subissue import subissue_markdown
from harness.schema.case import Layout
from harness.schema.verdict import RowVerdict
from harness.schema.vocabulary import ArmStatus, Kind, Method, RunStatus
from tests.builders import H200, Arm, case, decided, environment, manifest, measurement
from tests.e2e_builders import CEILING, sequence
from tests.report.golden_post import FOLDER, PLAN, URL, measured, posts, row
from tests.report.rendered import ANY_TEXT, GITHUB, shown, tables
from tests.report.rows import CASE, K, verdicts

MARKUP = ("link_open", "link_close", "strong_open", "strong_close", "em_open", "em_close", "softbreak")
FOLDS = re.compile(r"<details><summary>[\w ,+]+</summary>|</details>|<!-- title: .*? -->")


@pytest.mark.parametrize("name", ["measured.md", "won.md", "open.md", "subissue.md", "pr.md"])
def test_kept_posts_are_what_is_printed(name: str) -> None:
    """`python -m tests.report.golden_post` writes them; look at the difference."""
    assert posts()[name] == (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("gain", "sentence"),
    [
        (
            3.0,
            r"On NVIDIA H200, `inhouse.k` in place of native \+ torch.compile for GroupNorm \+ SiLU makes a request "
            r"of toy-dit \(50 steps and a decode\) 2\.\d+ % \[2\.\d+, 3\.\d+\] faster: worth wiring \(the bar is "
            r"1 %\)\.",
        ),
        (
            0.0,
            r"On NVIDIA H200, native \+ torch.compile stays for GroupNorm \+ SiLU: no candidate gains 1 % in a "
            r"deciding model; the best candidate, `inhouse.k`, makes toy-dit \(denoise step\) [\d.]+ % \[.+\] \w+\.",
        ),
        (
            -3.0,
            r".* stays .*the best candidate, `inhouse.k`, makes toy-dit \(denoise step\) 3\.\d+ % \[.+\] slower\.",
        ),
        (1.0, r".* is open end to end: the best candidate, `inhouse.k`, .* faster \(INCONCLUSIVE\)\."),
        (
            None,
            r"On NVIDIA H200, taken alone \(cold L2, CUDA-graph replay\), `inhouse.k` does the GroupNorm \+ SiLU calls "
            r"\(contiguous\) of toy-dit 1\.\d+× \[.*\] as fast as native \+ torch.compile; host time per call is in "
            r"the table and counts where no CUDA graph is used; no model was run with it yet, so nothing is known of "
            r"a gain end to end\.",
        ),
    ],
)
def test_the_conclusion_is_one_sentence_and_no_more_than_the_evidence(gain: float | None, sentence: str) -> None:
    made = conclusion(verdicts(gain).rows[0])
    assert re.fullmatch(sentence, made), made
    assert ". " not in made.replace("torch.compile", "")


def test_a_row_closed_by_what_was_possible_says_so() -> None:
    made = conclusion(verdicts(0.1, others={CEILING: 0.2}).rows[0])
    assert re.search(r", and even leaving the op out only makes it 0\.\d+ % \[[-\d., ]+\] faster\.$", made), made


@pytest.mark.parametrize(
    ("arms", "status", "says"),
    [
        ({K: Arm(0.9)}, RunStatus.MEASURED, "no candidate is faster than native + torch.compile: at best `inhouse.k`"),
        ({}, RunStatus.MEASURED, "there is no candidate for GroupNorm + SiLU to compare"),
        ({K: Arm(1.5)}, RunStatus.THROTTLED, "is open: 0 of 1 deciding steps are decided, none"),
        ({K: Arm(status=ArmStatus.INELIGIBLE, reason="odd")}, RunStatus.MEASURED, "torch.compile: none is eligible;"),
    ],
)
def test_conclusions_of_the_isolated_stage(arms: dict[str, Arm], status: RunStatus, says: str) -> None:
    made = conclusion(decided(measurement(arms, status=status, reason="hot")).rows[0])
    assert says in made
    assert made.endswith("no model was run with it yet, so nothing is known of a gain end to end.")


def test_many_steps_are_a_range_and_what_was_not_measured_is_counted() -> None:
    cases = [case(f"c{n}", model=f"m{n}") for n in range(6)]
    of = manifest(*cases, deciding=tuple(one.model for one in cases))
    runs = [measurement({K: Arm(1.2 + n / 10)}, of=one) for n, one in enumerate(cases[:4])]
    made = conclusion(decided(*runs, of=of).rows[0])
    assert re.search(r"does the GroupNorm \+ SiLU calls \(contiguous\) 1\.(19|20)\d× to 1\.(49|50)\d× as fast", made), (
        made
    )
    assert "(4 of 6 deciding steps, 2 not measured)" in made


def test_the_post_of_real_evidence_names_hashes_versions_command_and_what_is_missing() -> None:
    made = post_markdown(measured().rows[0], URL)
    for fact in (
        "| software | driver 580.159.04, CUDA 13.0, torch 2.11.0, triton 3.6.0, sglang 0.5.23, python 3.12.3 |",
        "| commit | 1df9872ee60626d6a5debc248238acb5e4f89031 with uncommitted changes |",
        "| command | `python -m harness bench groupnorm_silu --seconds 0.2` |",
        f"({URL}/results/nvidia-h200-132sm-140gib-driver580/groupnorm_silu.jsonl#L1)",
        "- Any model end to end; the row waits for hunyuanvideo-vae, flux.1-vae.",
        "- Shapes of flux.1-vae (decode of one 4x32x32 latent tile): other.",
        "1.512× [1.511, 1.514] | FASTER",
    ):
        assert fact in made, fact
    assert "](.." not in made


def _cells(markdown: str, *held: str) -> list[str]:
    """The cells of the one table row that holds all of these texts."""
    (line,) = [line for line in markdown.splitlines() if line.startswith("|") and all(one in line for one in held)]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_a_row_judged_against_the_twin_shows_the_time_that_its_ratio_divides() -> None:
    of = measurement({K: Arm(1.5)}, of=CASE, twin_speedup=1.2, control_speedup=1.0)
    made = post_markdown(verdicts(None, of).rows[0])
    cells = _cells(made, "1×512×5×32×940 bf16")
    assert re.fullmatch(r"83\.\d+ \[83\.\d+, 83\.\d+\] twin \(first compile: (100\.\d|99\.\d+)\)", cells[4]), cells
    quotient = float(cells[4].split()[0]) / float(cells[5].split()[0])
    assert abs(quotient - float(cells[6].partition("×")[0])) < 0.005
    assert "1 → 1" in cells
    assert "89." in cells[9].split(" → ")[0], "host time of the twin"
    assert made.count("*twin*: the baseline is compiled twice") == 1
    assert "twin" not in post_markdown(row(3.0)).partition("### End to end")[0]


def test_a_beaten_dynamic_baseline_is_said_in_its_place_and_in_the_scope() -> None:
    of = sequence({K: 3.0, CEILING: 5.0}, workload="other", statuses={"torch.compile_dynamic": ArmStatus.BEATEN})
    made = post_markdown(verdicts(3.0, more=of).rows[0])
    assert "baseline with `dynamic=True`, clearly beaten and left out: broke |" in made
    assert made.count("baseline with `dynamic=True`, times the static one |") == 2, "of the cells that have both"
    assert "clearly beaten" not in post_markdown(row(3.0))
    whole = scope(verdicts(3.0, more=of).rows, "")
    assert "static and dynamic shapes (dynamic left out where clearly beaten)" in whole
    assert "clearly beaten" not in scope(verdicts(3.0).rows, "")


def test_layouts_are_said_and_what_does_not_decide_is_marked() -> None:
    last = case("last", model="toy-dit").model_copy(update={"layout": Layout.CHANNELS_LAST})
    other = case("other", model="toy-nchw")
    unmeasured = [case(f"u{n}", model="canary", dims={"N": 1, "C": 512, "T": 5, "H": 32, "W": n}) for n in range(1, 9)]
    of = manifest(last, other, *unmeasured, deciding=("toy-dit",))
    made = decided(measurement({K: Arm(2.0)}, of=last), measurement({K: Arm(1.3)}, of=other), of=of).rows[0]
    posted = post_markdown(made)
    assert "does the GroupNorm + SiLU calls (channels_last) of toy-dit" in posted
    steps = posted.partition("### µbench")[2].partition("By shape")[0]
    decides, does_not = _cells(steps, "toy-dit, "), _cells(steps, "toy-nchw, ")
    assert (decides[1], decides[-1].strip(" |")) == ("channels_last", "FASTER")
    assert (does_not[1], does_not[-1].strip(" |")) == ("contiguous", "does not decide; FASTER")
    assert steps.index("toy-dit, ") < steps.index("toy-nchw, ") < steps.index("canary, ")
    sizes = f"1×512×5×32×{last.dims['W']} bf16"
    assert _cells(posted, sizes)[:3] == ["toy-dit", sizes, "channels_last"]
    assert "- Shapes of the manifest that do not decide: u1, u2, u3, u4, u5, u6 and 2 more.\n" in posted
    assert "- vLLM-Omni's own model code: the op was timed by itself, " in posted


def test_what_the_verdict_notes_of_a_leaders_time_stands_in_its_row() -> None:
    """A time that is not the train's own must not be shown as if it were."""
    of = measurement({K: Arm(1.5)}, of=CASE)
    hiding = [one.model_copy(update={"fenced_us": 70.0}) if one.id == K else one for one in of.arms]
    made = post_markdown(verdicts(None, of.model_copy(update={"arms": tuple(hiding)})).rows[0])
    cells = _cells(made, "1×512×5×32×940 bf16")
    assert cells[5].startswith("70.0")
    assert re.match(
        r"FASTER; its launches overlap one another: 66\.\d+ µs a call in a train of its own, 70\.00", cells[7]
    )


def test_another_card_of_the_same_kind_gets_a_line_with_what_it_said() -> None:
    second = environment(H200.model_copy(update={"uuid": "GPU-2"}))
    hot = measurement({K: Arm(1.5)}, of=CASE, env=second, status=RunStatus.THROTTLED, reason="hot")
    both = verdicts(None, measurement({K: Arm(1.5)}, of=CASE), hot).rows[0]
    assert _cells(post_markdown(both), "another card")[1].startswith("NVIDIA H200 (card GPU-2): ⏳ toy-dit: INVALID, ")
    assert "another card" not in post_markdown(row(3.0))


def test_no_host_time_is_spoken_of_where_the_clock_was_the_hosts() -> None:
    wall = measurement({K: Arm(1.5)}, of=CASE).model_copy(update={"method": Method.WALL})
    made = conclusion(verdicts(None, wall).rows[0])
    assert "(cold L2, wall clock)" in made
    assert "host time" not in made


def test_stale_evidence_is_said_above_the_figures_and_decides_nothing() -> None:
    old = verdicts(0.0, env=environment(op_sha256="old")).rows[0]
    assert "\n\n**Stale:** the op's sources have changed since. These figures are of the code as it was.\n\n" in (
        post_markdown(old)
    )
    with pytest.raises(UserError, match=r"its evidence is stale \(the op's sources have changed since\)"):
        subissue_markdown(old)


def test_what_was_not_tested_names_absent_candidates_models_and_weights() -> None:
    arms = {
        K: Arm(1.5),
        "other.k": Arm(status=ArmStatus.NOT_INSTALLED, reason="other is not installed", kind=Kind.CUDA),
        "odd.k": Arm(status=ArmStatus.INELIGIBLE, reason="takes fp32"),
    }
    of = CASE.model_copy(update={"contexts": ("conv",)})
    made = verdicts(3.0, measurement(arms, of=of), deciding=("toy-dit", "toy-video")).rows[0]
    listed = post_markdown(made).partition("### Not tested")[2].partition("### Reproduce")[0]
    for fact in (
        "- `other.k`: other is not installed.",
        "- `odd.k`: takes fp32.",
        "- Deciding models that were not run: toy-video.",
        "- vLLM-Omni's own model code: the models are those of diffusers 0.42.1.",
        "- Real weights: ",
        "- Of the requests: text encoder, which can only lower the gain.",
    ):
        assert fact in listed, fact


def test_noise_is_called_noise_and_faster_is_less_time() -> None:
    lines = post_markdown(row(3.0)).splitlines()
    assert any(
        re.match(r"\| denoise step, ms \| 100\.\d+ \| 97\.\d+ \| -2\.9\d % \[-3\.\d+, -2\.\d+\] \|", one)
        for one in lines
    )
    assert any(re.match(r"\| noise: the baseline compiled a second time \(A/A\) .* \(noise\) \|", one) for one in lines)
    assert any(one.startswith("| what was possible: the op left out |") for one in lines)
    (request,) = [one for one in lines if one.startswith("| request: 50 steps and a decode")]
    assert "this component is 96.2 % of it; left out: text encoder" in request
    assert request.endswith("WIN |")


@pytest.mark.defence("post_refuses")
@pytest.mark.parametrize(
    ("made", "refusal"),
    [
        (
            lambda: post_markdown(decided().rows[0]),
            "groupnorm_silu: nothing was measured on a GPU yet, so there is nothing to post; run `make bench OP=",
        ),
        (
            lambda: subissue_markdown(row(3.0)),
            "a sub-issue is for a row that is ❌ end to end; its µbench is ✅ and its E2E is ✅; write `harness pr ",
        ),
        (
            lambda: subissue_markdown(decided(measurement({K: Arm(0.9)})).rows[0]),
            "a sub-issue is for a row that is ❌ end to end; its µbench is ❌ and its E2E is 🙋; run `make e2e "
            "OP=groupnorm_silu` (hunyuan-vae did not run yet).",
        ),
        (
            lambda: pr_markdown(row(0.0), PLAN),
            "a PR is for a row that is ✅ end to end; its µbench is ✅ and its E2E is ❌",
        ),
        (lambda: pr_markdown(row(1.0), PLAN), "its µbench is ✅ and its E2E is ⏳; run `make e2e OP=groupnorm_silu`."),
    ],
)
def test_what_the_evidence_does_not_carry_is_refused_in_a_sentence(made, refusal: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=re.escape(refusal)):
        made()


def test_a_pr_follows_the_template_and_leaves_models_alone_where_nothing_is_won() -> None:
    slower = sequence({K: 0.0}, workload="other")
    made = pr_markdown(verdicts(3.0, more=slower).rows[0], PLAN)
    headings = re.findall(r"^## (.*)$", made, flags=re.MULTILINE)
    assert headings == ["Purpose", "Test Plan", "Test Result"]
    assert re.search(r"Left as they are, since nothing is won there: other, denoise step \(NO_WIN, ", made)
    assert made.endswith(
        "**vLLM Version:** (fill in: these figures were measured outside it)\n"
        "**vLLM-Omni Commit:** (fill in: these figures were measured outside it)\n"
    )


@pytest.mark.parametrize(
    ("kind", "provider", "kernel", "registered"),
    [
        (Kind.TRITON, "sglang", "Port the Triton kernel of `sglang` into the layers folder, its licence with it", True),
        (
            Kind.CUDA,
            "vllm",
            "Nothing is ported: `vllm` has the kernel, and `forward_cuda` or the call site calls",
            True,
        ),
        (Kind.REWRITE, "torch", "No kernel: another plain-PyTorch form", False),
    ],
)
def test_the_plan_follows_the_kind_of_the_winner(kind: Kind, provider: str, kernel: str, registered: bool) -> None:
    from dataclasses import replace

    made = pr_markdown(row(3.0), replace(PLAN, kind=kind, provider=provider))
    assert kernel in made
    assert ('@torch.library.custom_op("vllm_omni::k"' in made) is registered
    assert ("None: it is compiled with what surrounds it." in made) is not registered


_WON, _LOST = row(3.0), row(0.0)


def hostile(of: RowVerdict, evil: str) -> RowVerdict:
    """The row with the text in every place that a file or a package fills."""
    (card,) = of.cards
    (step,) = card.steps
    (comparison,) = card.comparisons
    device = card.device.model_copy(update={"name": f"GPU {evil}"})
    arms = tuple(arm.model_copy(update={"reason": evil}) for arm in comparison.arms)
    cells = tuple(
        cell.model_copy(
            update={
                "device": device,
                "library": f"lib {evil}",
                "title": f"model {evil}",
                "what": f"step {evil}",
                "versions": {"pkg": evil},
                "compositions": tuple(one.model_copy(update={"what": f"r {evil}"}) for one in cell.compositions),
                "unmeasured_parts": (evil,),
            }
        )
        for cell in of.cells
    )
    changed = card.model_copy(
        update={
            "device": device,
            "steps": (step.model_copy(update={"model": f"m{evil}", "reason": evil}),),
            "comparisons": (comparison.model_copy(update={"arms": arms}),),
            "providers": {"p": (f"v{evil}",)},
            "git_shas": (f"c{evil}",),
        }
    )
    return of.model_copy(update={"title": f"T {evil}", "cards": (changed,), "cells": cells})


@pytest.mark.defence("report_escaping")
@settings(max_examples=20, deadline=None)
@given(evil=ANY_TEXT)
def test_nothing_that_came_from_a_file_or_a_package_marks_up_a_post_or_calls_anybody(evil: str) -> None:
    won, lost = hostile(_WON, evil), hostile(_LOST, evil)
    shape = [[len(line) for line in rows] for rows in tables(FOLDS.sub("", post_markdown(_WON)))]
    for markdown in (post_markdown(won), subissue_markdown(lost), pr_markdown(won, PLAN)):
        bare = FOLDS.sub("", markdown)
        for token in GITHUB.parse(bare):
            assert token.type != "html_block", token
            if token.type == "inline":
                shown(token, *MARKUP)
        if markdown.startswith("## "):
            assert [[len(line) for line in rows] for rows in tables(bare, *MARKUP)] == shape


def test_posting_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from harness import posting\n"
        f"posting.post('groupnorm_silu', output=__import__('pathlib').Path({str(tmp_path / 'x.md')!r}))\n"
        "print([name for name in ('torch', 'triton', 'matplotlib', 'pandas') if name in sys.modules])"
    )
    root = shutil.copytree(FOLDER.parent / "report" / "root", tmp_path / "root")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, env={"PYTHONPATH": str(Path.cwd())}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert (tmp_path / "x.md").read_text(encoding="utf-8").startswith("## GroupNorm + SiLU on Made-up GPU\n")


def test_a_sequence_broken_off_is_left_out_where_another_card_finished_one() -> None:
    """Its figure would be the best one here, and the verdict does not count it."""
    other = environment(H200.model_copy(update={"uuid": "GPU-2"}))
    (broken,) = sequence({K: 9.0}, 1, env=other)
    made = verdicts(3.0, more=[broken]).rows[0]
    assert len([cell for cell in made.cells if cell.workload == "toy-dit"]) == 2
    posted = post_markdown(made)
    assert posted.count("#### toy-dit, denoise step") == 1
    assert "GPU-2" not in posted


def test_a_gpu_of_ones_own_has_a_post_of_its_own() -> None:
    b200 = environment(H200.model_copy(update={"key": "b200", "name": "NVIDIA B200"}))
    both = decided(measurement({K: Arm(1.5)}), measurement({K: Arm(1.2)}, env=b200))
    assert post_markdown(both.on("b200").rows[0]).startswith("## GroupNorm + SiLU on NVIDIA B200\n")
    assert post_markdown(both.on(H200.key).rows[0]).startswith("## GroupNorm + SiLU on NVIDIA H200\n")


def test_the_best_kernel_of_a_context_is_told_in_the_post() -> None:
    of = case(contexts=("conv",))
    alone = measurement({K: Arm(1.0)}, of=of, noise_percent=0.1)
    within = measurement({K: Arm(0.9), "inhouse.both": Arm(1.6)}, of=of, context="conv")
    posted = post_markdown(decided(alone, within, of=manifest(of)).rows[0])
    assert "| conv | `inhouse.both` | – | 1.6" in posted


def test_a_leader_that_covers_a_part_says_so() -> None:
    runs = [
        measurement({K: Arm(1.5)}, of=case("a"), noise_percent=0.05),
        measurement({K: Arm(status=ArmStatus.INELIGIBLE, reason="odd")}, of=case("b")),
    ]
    posted = post_markdown(decided(*runs, of=manifest(*(one.case for one in runs))).rows[0])
    assert f"`{K}` (1 of 2 cases; the rest counts as torch.compile)" in posted
