"""Text for the experiments: one split by sentence, one numbering, from several kinds of files."""

import gzip

import numpy as np
import pytest
from text import PARTS, Text, main, read_text

from uncork import UncorkError


def sentences(text: Text, part: str) -> list[str]:
    stream = getattr(text, part).tolist()
    joined = " ".join(text.words[i] for i in stream)
    return [one.strip() for one in joined.split("<eos>") if one.strip()]


@pytest.fixture
def pairs(tmp_path):
    """100 English sentences, each with three translations, on neighbouring lines."""
    path = tmp_path / "pairs.tsv.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for i in range(100):
            for j in range(3):
                file.write(f"Tom's cat number{'abcdefghij'[i % 10] * (i // 10 + 1)}.\tSatz {j}\n")
    return path


def test_a_sentence_with_several_translations_counts_once_and_is_in_one_part(pairs):
    text = read_text(pairs)
    parts = [sentences(text, part) for part in PARTS]
    assert [len(part) for part in parts] == [90, 5, 5]
    every = [one for part in parts for one in part]
    held_out = {one for part in parts[1:] for one in part}
    assert len(held_out) <= 10
    assert not any("Satz" in one for one in every)
    # Words never seen in training are <unk>; none of the held-out ones was seen.
    assert all("<unk>" in one for one in held_out)


def test_words_keep_apostrophes_and_are_numbered_by_frequency(pairs):
    text = read_text(pairs)
    assert text.words[:2] == ["<unk>", "<eos>"]
    assert set(text.words[2:5]) == {".", "Tom's", "cat"}
    assert (np.diff(text.counts[2:]) <= 0).all()
    assert text.counts.sum() == len(text.train)


def test_the_vocabulary_is_as_large_as_asked_and_the_rest_unknown(pairs):
    text = read_text(pairs, vocabulary=5)
    assert text.vocabulary == 5
    assert text.counts[0] == 90  # the numbers, one a sentence


def test_the_same_source_gives_the_same_numbers_and_another_seed_another_split(pairs):
    first, again, other = read_text(pairs), read_text(pairs), read_text(pairs, seed=1)
    assert np.array_equal(first.train, again.train)
    assert first.words == again.words
    assert sorted(sentences(first, "train")) != sorted(sentences(other, "train"))


def test_the_penn_treebank_keeps_its_three_parts_and_its_unknown_words(tmp_path):
    for part, line in (("train", " a <unk> b a \n a \n"), ("valid", " b c \n"), ("test", " a \n")):
        (tmp_path / f"ptb.{part}.txt").write_text(line)
    text = read_text(tmp_path)
    assert text.words == ["<unk>", "<eos>", "a", "b"]
    assert text.train.tolist() == [2, 0, 3, 2, 1, 2, 1]
    assert text.valid.tolist() == [3, 0, 1]
    assert text.test.tolist() == [2, 1]


def test_what_was_prepared_is_read_back_as_it_was(pairs, tmp_path, capsys):
    main([str(pairs), "--out", str(tmp_path / "deep" / "tokens.npz")])
    assert "95 words" not in capsys.readouterr().err
    kept, made = read_text(tmp_path / "deep" / "tokens.npz"), read_text(pairs)
    assert kept.words == made.words
    for part in (*PARTS, "counts"):
        assert np.array_equal(getattr(kept, part), getattr(made, part))


def test_a_wrong_source_is_said_in_a_line(pairs, tmp_path):
    with pytest.raises(UncorkError, match="there is no text"):
        read_text(tmp_path / "none.txt")
    with pytest.raises(UncorkError, match=r"no ptb\.train\.txt"):
        read_text(tmp_path)
    (tmp_path / "short.txt").write_text("one\ntwo\n")
    with pytest.raises(UncorkError, match="2 distinct sentences"):
        read_text(tmp_path / "short.txt")
    np.savez(tmp_path / "other.npz", a=np.zeros(2))
    with pytest.raises(UncorkError, match="no text that this module wrote"):
        read_text(tmp_path / "other.npz")
    read_text(pairs).save(tmp_path / "large.npz")
    with pytest.raises(UncorkError, match="prepare it again"):
        read_text(tmp_path / "large.npz", vocabulary=10)


def test_a_table_may_give_both_its_languages(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"one w{i}\tzwei v{i}\n" for i in range(40)), "utf-8")
    one, both = read_text(path, 1000), read_text(path, 1000, columns=2)
    assert "zwei" not in one.words
    assert {"one", "zwei"} <= set(both.words)
    assert (
        sum(len(part) for part in (both.train, both.valid, both.test)) == 2 * 4 * 40
    )  # one, w, its number, <eos>
