"""The two towers: MovieLens's formats, what is held out, and recall in closed form."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CSV = ["userId,movieId,rating,timestamp", "7,31,2.5,1260759144", "1,29,4.0,1260759000"]
DAT = ["7::31::2.5::1260759144", "1::29::4.0::1260759000"]


@pytest.fixture(scope="module")
def towers():
    spec = importlib.util.spec_from_file_location("two_tower", EXAMPLES / "two_tower.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("lines", [CSV, DAT], ids=["csv", "dat"])
def test_both_formats_are_read_the_oldest_rating_first(towers, lines):
    expected = [[1, 29, 4, 1260759000], [7, 31, 2.5, 1260759144]]
    np.testing.assert_array_equal(towers.read(lines), expected)


def test_the_last_liked_movie_of_each_user_is_held_out(towers):
    ratings = np.array([[1, 10, 5, 0], [2, 10, 4, 1], [1, 11, 4, 2], [1, 12, 3, 3], [2, 13, 5, 4]])
    trained, tested = towers.split(ratings)
    assert trained.tolist() == [[1, 10], [2, 10]]
    assert tested.tolist() == [[1, 11], [2, 13]]


def test_recall_leaves_out_what_was_rated_otherwise(towers, monkeypatch):
    """User 1 has rated the movie of the higher score; user 2 has not."""
    monkeypatch.setattr(towers, "K", 1)
    movies, tested = np.array([10, 11, 12]), np.array([[1, 11], [2, 11]])
    scores = np.array([[3.0, 2, 1], [3, 2, 1]])
    ratings = np.array([[1, 10], [1, 11], [2, 11], [3, 10]])
    assert towers.recall(scores, tested, movies, ratings) == 0.5
    monkeypatch.setattr(towers, "K", 2)
    assert towers.recall(scores, tested, movies, ratings) == 1


def test_the_synthetic_ratings_are_a_ratings_csv_in_which_users_like_a_genre(towers):
    ratings = towers.read(towers.synthetic(users=40, movies=400))
    same = ratings[:, 0] % 20 == ratings[:, 1] % 20
    np.testing.assert_array_equal(same, ratings[:, 2] >= towers.LIKED)
    assert len(np.unique(ratings[:, :2], axis=0)) == len(ratings)


@pytest.mark.filterwarnings("ignore:loadtxt. input contained no data")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("user movie\n", "Received: could not convert"),
        ("1::2::3::4\n", "nobody who gave two movies 4 stars"),
        ("1::2::5\n" * 4, "invalid column index 3"),
        ("userId,movieId,rating,timestamp\n", "nobody who gave"),
    ],
)
def test_a_file_of_anything_else_is_refused(towers, tmp_path, monkeypatch, capsys, text, message):
    path = tmp_path / "ratings.dat"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr("sys.argv", ["two_tower.py", "--ratings", str(path)])
    with pytest.raises(SystemExit, match="2"):
        towers.main()
    assert message in capsys.readouterr().err
