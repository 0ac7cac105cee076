import time, mmap, tempfile, numpy as np
from sparktrain.xgboost.trainer import *
from sparktrain.xgboost.spec import *
from sparktrain.shards.tensors import *


def file_array(a):
    f = tempfile.TemporaryFile()
    f.write(a.tobytes())
    f.flush()
    return np.frombuffer(mmap.mmap(f.fileno(), a.nbytes, access=mmap.ACCESS_COPY), a.dtype).reshape(a.shape)


def run(rank, world):
    X = np.load("/tmp/exp/data/features.npy")[rank::world]
    y = np.load("/tmp/exp/data/labels.npy")[rank::world].astype(float)
    n = len(X)
    perm = np.random.default_rng(rank).permutation(n)
    shard = Shard(
        (
            TensorSpec("f", "input", (), "float32", (20,)),
            TensorSpec("l", "label", (), "float64", ()),
            TensorSpec(KEY, "key", (), "int64", ()),
        ),
        (file_array(X[perm]), file_array(y[perm]), file_array(perm.astype(np.int64))),
    )
    spec = BoosterSpec(
        "classification",
        {"max_depth": 6, "learning_rate": 0.3},
        50,
        None,
        Features(None, None, (), None, float("nan")),
        None,
        0,
        "cpu",
        False,
        True,
        None,
        None,
    )
    a = time.time()
    t = Trainer(spec, {}, shard, threads=1)
    b = time.time()
    mk = t._maker(t._params())
    m = mk.make(t._rows(t._train_rows), "t")
    c = time.time()
    t.fit()
    d = time.time()
    print(rank, "init", round(b - a, 2), "matrix", round(c - b, 2), "fit incl matrix", round(d - c, 2), flush=True)
    return None
