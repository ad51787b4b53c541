"""What `regard train` says before the first step, and after the last."""

from regard.cli import main

SIZES = ["--set", "width=8", "--set", "heads=2", "--set", "depth=1", "--steps", "1", "--quiet"]


def test_the_device_that_was_taken_and_a_guessed_column_are_said(tmp_path, capsys):
    rows = (f"{('good', 'bad')[n % 2]}\titem {n} is {('fine', 'broken')[n % 2]}\n" for n in range(60))
    (tmp_path / "a b.tsv").write_text("".join(rows))
    argv = ["train", "classify", "--data", str(tmp_path / "a b.tsv"), "--tokenizer", "word", *SIZES]
    assert main([*argv, "--out", str(tmp_path / "run 1"), "--device", "auto"]) == 0
    captured = capsys.readouterr()
    assert "cpu (auto: no GPU found), " in captured.err or "(auto); " in captured.err
    assert "the first column is taken for the label ('good' in the first line)" in captured.err
    assert f"regard evaluate '{tmp_path}/run 1' " in captured.out  # as a shell reads it
    assert main([*argv, "--out", str(tmp_path / "run 2"), "--device", "cpu", "--fields", "2", "1"]) == 0
    captured = capsys.readouterr()
    assert "\ncpu, " in captured.err and "is taken for the label" not in captured.err


def test_a_text_that_is_too_short_is_called_so(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("a")
    assert (
        main(["train", "language", "--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "run"), "--tokenizer", "byte", *SIZES])
        == 2
    )
    err = capsys.readouterr().err
    assert "too short: 0 documents to train on" in err and "--valid" in err
