"""Do taggers ever give their lost tags? A Czech and a Japanese pipeline, run on sentences.

    python experiments/lost_tags.py --out results/lost_tags.json

The morphologiser of cs_core_news_sm 0.2.1 can never give five of its 2,503 tags; of the 758 moves
of ja_ginza 5.3.0's entity recogniser 48 can never score highest. Both run here as spaCy runs them,
on everyday sentences and on sentences in which a lost tag or type would be the right one, and every
score of their last layer is looked at. An entity recogniser takes the best of the moves that its
state allows, so for Japanese it is also counted whether the first move was allowed, and which one
was taken.

Needs spaCy 3.8 and both pipelines: pip install cs_core_news_sm==0.2.1 ginza==5.3.0 ja_ginza==5.3.0
sudachipy sudachidict_core.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
from lost_on_data import places, print_places
from many_runs import write_json

import uncork
from uncork import Head, UncorkError

# Czech: a word, its right tag, which is lost, and sentences with it.
CZECH_LOST = {
    "Case=Dat|Gender=Fem|Number=Plur|POS=DET|PronType=Tot": (
        "veškerým", ("Čelí veškerým změnám.", "Navzdory veškerým snahám neuspěl.",
                     "Vyhověl veškerým žádostem.", "Rozuměl veškerým otázkám.")),
    "Animacy=Anim|Case=Nom|Degree=Sup|Gender=Masc|Number=Plur|POS=ADJ|Polarity=Neg"
    "|VerbForm=Part|Voice=Pass": (
        "nejneoblíbenější", ("Byli to nejneoblíbenější politici v zemi.",
                             "Nejneoblíbenější učitelé odešli ze školy.")),
    "Animacy=Anim|Case=Gen|Gender=Masc|Gender[psor]=Masc|NameType=Giv|Number=Sing|POS=ADJ"
    "|Poss=Yes|Style=Coll": (
        "Petrovýho", ("Potkal jsem Petrovýho bratra.", "Bez Petrovýho psa nikam nejdu.")),
    "Case=Dat|Gender=Neut|Number=Plur|POS=NOUN|Style=Coll": (
        "děckám", ("Koupil jsem děckám zmrzlinu.", "Řekni to děckám.")),
    "Animacy=Inan|Case=Acc|Degree=Cmp|Gender=Masc|Number=Sing|POS=ADJ|Polarity=Pos"
    "|VerbForm=Part|Voice=Pass": (
        "oblíbenější", ("Neznám oblíbenější film.", "Nikdy jsem neviděl oblíbenější román.",
                        "Hledáme oblíbenější způsob dopravy.")),
}  # fmt: skip
# The same words and cases where another tag, which is not lost, is the right one.
CZECH_NEAR = {
    "Case=Dat|Number=Plur|POS=DET|PronType=Tot": (
        "všem", ("Čelí všem změnám.", "Navzdory všem snahám neuspěl.",
                 "Vyhověl všem žádostem.", "Rozuměl všem otázkám.")),
    "Animacy=Inan|Case=Acc|Degree=Cmp|Gender=Masc|Number=Sing|POS=ADJ|Polarity=Pos": (
        "lepší", ("Neznám lepší film.", "Nikdy jsem neviděl lepší román.",
                  "Hledáme lepší způsob dopravy.")),
    "Case=Dat|Gender=Neut|Number=Plur|POS=NOUN": (
        "městům", ("Koupil jsem městům stromy.", "Řekni to městům.")),
    "Animacy=Anim|Case=Gen|Gender=Masc|Gender[psor]=Masc|NameType=Giv|Number=Sing|POS=ADJ"
    "|Poss=Yes": (
        "Petrova", ("Bez Petrova psa nikam nejdu.", "Bojím se Petrova bratra.")),
}  # fmt: skip
CZECH = """Dnes je krásné počasí a děti si hrají venku.
Kolik stojí ten červený kabát?
Vlak do Brna odjíždí v osm hodin ráno.
Moje sestra pracuje jako lékařka v nemocnici.
Včera jsme večeřeli v nové restauraci.
Prosím vás, kde je nejbližší zastávka?
Ve čtvrtek půjdeme do divadla.
Tatínek opravil staré kolo.
Knihy ležely na stole vedle okna.
Až se vrátím, zavolám ti.
V zimě chodíme lyžovat do hor.
Nový zákon začne platit od ledna.
Petr a Jana se vzali loni v létě.
Rád bych si objednal kávu s mlékem.
Vláda schválila rozpočet na příští rok.
Pes štěkal celou noc.
Musíme koupit chleba, mléko a sýr.
Studenti psali zkoušku z matematiky.
Ten film se mi vůbec nelíbil.
Na zahradě kvetou růže a tulipány.
Firma propustila třicet zaměstnanců.
Kdyby nepršelo, šli bychom na procházku.
Nejvyšší hora Česka je Sněžka.
Starý most přes řeku byl uzavřen.
Zprávy v televizi začínají v sedm.
Babička upekla výborný koláč.
Učitel vysvětloval žákům novou látku.
Zapomněl jsem si doma klíče.
Cena benzínu opět vzrostla o dvě koruny.
Jejich dům stojí na kopci za vesnicí.""".splitlines()

# Japanese: names of one type; the types of the first part have lost moves, the others none.
JAPANESE_LOST = {
    "Airport": ("成田空港", "羽田空港", "新千歳空港", "南紀白浜空港", "能登里山空港", "松本空港"),
    "Reptile": ("ウミガメ", "イグアナ", "コモドドラゴン", "ミシシッピアカミミガメ"),
    "Amphibia": ("ヒキガエル", "オオサンショウウオ", "モリアオガエル"),
    "Constellation": ("オリオン座", "さそり座", "おおぐま座", "みなみじゅうじ座"),
    "Mollusc_Arthropod": ("ダイオウイカ", "ズワイガニ", "タカアシガニ", "カブトガニ"),
    "Astral_Body_Other": ("アンドロメダ銀河", "ハレー彗星", "おうし座かに星雲"),
    "URL": ("https://example.jp/top", "www.example.co.jp"),
    "Email": ("info@example.jp", "tanaka@example.co.jp"),
    "Phone_Number": ("03-1234-5678", "0120-444-444"),
    "Temperature": ("零下十度", "25度", "36.5度"),
    "Earthquake": ("関東大震災", "東日本大震災", "阪神大震災"),
    "Zoo": ("上野動物園", "旭山動物園"),
    "Tunnel": ("青函トンネル", "関門トンネル"),
}  # fmt: skip
JAPANESE_KEPT = {
    "Station": ("東京駅", "新大阪駅", "名古屋駅", "長万部駅", "武蔵小杉駅", "京都駅"),
    "Mammal": ("ツキノワグマ", "シロナガスクジラ", "ニホンザル", "イリオモテヤマネコ"),
    "Bird": ("オオワシ", "ペンギン", "タンチョウヅル"),
    "Planet": ("土星", "木星", "海王星", "火星"),
    "Insect": ("カブトムシ", "アキアカネ", "モンシロチョウ", "ミツバチ"),
    "Mountain": ("富士山", "エベレスト", "穂高岳"),
    "Date": ("2020年5月3日", "昨年"),
    "Person": ("田中", "鈴木一郎"),
    "Money": ("三千円", "500ドル"),
    "Percent": ("三割", "25パーセント", "4.5％"),
    "War": ("関ヶ原の戦い", "第二次世界大戦", "日露戦争"),
    "Museum": ("東京国立博物館", "国立西洋美術館"),
    "Bridge": ("瀬戸大橋", "明石海峡大橋"),
}  # fmt: skip
FRAMES = ("昨日、{}を見ました。", "{}について調べている。", "父は{}のことを話した。", "{}です。")
JAPANESE = """今日は天気がいいので、公園を散歩しました。
山田さんは来週、大阪へ出張する予定です。
株価は前日より二百円安い一万五千円だった。
彼女は2018年に東京大学を卒業した。
トヨタ自動車は新しい工場を愛知県に建てる。
夏休みに家族で北海道を旅行しました。
首相は国会で経済政策について説明した。
この本は村上春樹の代表作だ。
昨夜、京都で大きな火事があった。
私は毎朝六時に起きてコーヒーを飲みます。
日本代表はブラジルに二対一で勝った。
母の誕生日に花を贈った。
新型の電車が四月から走り始める。
フランス語を三年間勉強しています。
台風十号が九州に近づいている。
医者に薬を飲むように言われた。
図書館は月曜日が休みだ。
そのレストランの寿司はとてもおいしい。
政府は消費税を十パーセントに上げた。
子どもたちは校庭でサッカーをしている。""".splitlines()


def examples(language: str) -> list[str]:
    """The sentences that spaCy itself brings along."""
    module = importlib.import_module(f"spacy.lang.{language}.examples")
    return list(module.sentences)


def pipeline(name: str) -> tuple[Any, Path]:
    """A loaded pipeline, and the folder of its files."""
    try:
        import spacy

        nlp = spacy.load(name)
    except (ImportError, OSError) as error:
        raise UncorkError(f"{name} cannot be run: {str(error).splitlines()[0]}") from None
    return nlp, Path(nlp.path)


def czech() -> dict[str, Any]:
    nlp, folder = pipeline("cs_core_news_sm")
    head = uncork.load(folder / "morphologizer")
    lost = uncork.audit(head, jobs=1).unargmaxable
    pipe = nlp.get_pipe("morphologizer")
    assert head.labels is not None
    # Compared without order: the file and the pipe write a tag's parts in different ones.
    named = {frozenset(label.split("|")): k for k, label in enumerate(head.labels)}
    general = [*examples("cs"), *CZECH]
    words = []
    for title, wanted in (("lost", CZECH_LOST), ("argmaxable", CZECH_NEAR)):
        for tag, (word, sentences) in wanted.items():
            k = named[frozenset(tag.split("|"))]
            for sentence in sentences:
                doc = nlp(sentence)
                scores = pipe.model.predict([doc])[0]
                where = next(t.i for t in doc if t.text.lower() == word.lower())
                given = int(scores[where].argmax())
                words.append({
                    "right": title, "sentence": sentence, "word": word, "tag": tag,
                    "given": head.labels[given], "hit": given == k,
                    "rank": int((scores[where] > scores[where, k]).sum()) + 1,
                    "behind": round(float(scores[where].max() - scores[where, k]), 2),
                })  # fmt: skip
    every = general + [one["sentence"] for one in words]
    logits = np.concatenate([s for doc in map(nlp, every) for s in pipe.model.predict([doc])])
    return {
        "model": "spaCy Czech, morphology", "sentences": len(every), "inputs": len(logits),
        "lost_labels": [head.labels[k] for k in lost], "places": places(logits, head, lost),
        "words": words,
    }  # fmt: skip


class Moves:
    """GiNZA's entity recogniser one move at a time, as spaCy's greedy parser makes them."""

    def __init__(self) -> None:
        self.nlp, folder = pipeline("ja_ginza")
        self.head: Head = uncork.load(folder / "ner")
        self.lost = uncork.audit(self.head, jobs=1).unargmaxable
        self.pipe = self.nlp.get_pipe("ner")
        assert self.head.labels is not None
        self.names = self.head.labels  # as spaCy calls the moves, and in its order

    def __call__(self, doc: Any) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """Scores of every state (n, moves), and the first and the taken move of each."""
        step = self.pipe.model.predict([doc])
        states = self.pipe.moves.init_batch([doc])
        scores, made = [], []
        while states and not states[0].is_final():
            found = np.asarray(step.predict(states))
            scores.append(found[0].copy())
            order = np.argsort(-found[0], kind="stable")
            taken = next((k for k in order if self.allowed(states[0], int(k))), order[0])
            made.append((int(order[0]), int(taken)))
            self.pipe.transition_states(states, found)
        return np.array(scores), made

    def allowed(self, state: Any, move: int) -> bool:
        return bool(self.pipe.moves.is_valid(state, self.names[move]))


def japanese() -> dict[str, Any]:
    moves = Moves()
    head, lost = moves.head, set(moves.lost.tolist())
    assert head.labels is not None
    every = [*examples("ja"), *JAPANESE]
    tries = []
    for title, wanted in (("lost", JAPANESE_LOST), ("kept", JAPANESE_KEPT)):
        for kind, names in wanted.items():
            for name in names:
                for frame in FRAMES:
                    sentence = frame.format(name)
                    every.append(sentence)
                    doc = moves.nlp(sentence)
                    begin = sentence.index(name)
                    inside = [t for t in doc if begin <= t.idx < begin + len(name)]
                    single = len(inside) == 1
                    needed = ["U"] if single else ["B", "L"]
                    gone = {f"{m}-{kind}" for m in needed} & {head.labels[k] for k in lost}
                    found = [e.label_ for e in doc.ents if e.text == name]
                    tries.append({
                        "type": kind, "of": title, "name": name, "tokens": len(inside),
                        "needs_lost_moves": bool(gone), "given": found[0] if found else None,
                        "hit": found == [kind],
                    })  # fmt: skip
    scores, made = [], []
    for sentence in every:
        doc = moves.nlp.make_doc(sentence)
        for name, pipe in moves.nlp.pipeline:
            if name == "ner":
                break
            doc = pipe(doc)
        found, own = moves(doc)
        scores.append(found)
        made += own
    logits = np.concatenate(scores)
    return {
        "model": "GiNZA Japanese, names", "sentences": len(every), "inputs": len(logits),
        "lost_labels": [head.labels[k] for k in moves.lost],
        "places": places(logits, head, moves.lost),
        "first_not_allowed": sum(a != b for a, b in made),
        "lost_taken": sum(b in lost for _, b in made), "names": tries,
    }  # fmt: skip


def share(entries: list[dict[str, Any]]) -> str:
    return f"{sum(one['hit'] for one in entries)} of {len(entries)}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the file of results (.json)")
    asked = parser.parse_args(arguments)
    results = [czech(), japanese()]
    write_json(asked.out, results, lines=True)
    for one in results:
        print(f"\n{one['model']}: {one['sentences']} sentences, {one['inputs']} inputs")
        print_places(one["places"])
    words, names = results[0]["words"], results[1]["names"]
    for title in ("lost", "argmaxable"):
        print(f"Czech, right tag {title}: given", share([w for w in words if w["right"] == title]))
    for lost in (True, False):
        found = [n for n in names if n["needs_lost_moves"] is lost]
        print(f"Japanese, needs lost moves {lost}: right", share(found))
    print("first move not allowed:", results[1]["first_not_allowed"],
          "lost move taken:", results[1]["lost_taken"])  # fmt: skip


if __name__ == "__main__":
    try:
        main()
    except UncorkError as error:
        sys.exit(f"error: {error}")
