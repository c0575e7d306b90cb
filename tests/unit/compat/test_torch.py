"""What older versions of torch lack."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from tunelight.compat.torch import store_on, use_gpu
from tunelight.machine.network import listening


@pytest.mark.parametrize(
    ("version", "libuv"), [("2.4.0", False), ("2.7.1+cpu", False), ("2.8.0", True), ("2.13.0+cpu", True)]
)
def test_a_store_takes_over_the_socket_that_holds_its_port(version, libuv, monkeypatch):
    if libuv and torch.__version__ < "2.8":
        pytest.skip("this torch's libuv takes no socket")
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    with listening("127.0.0.1") as listener:
        port = int(listener.getsockname()[1])
        store = store_on(listener, "127.0.0.1", 10.0)
    client = dist.TCPStore("127.0.0.1", port, is_master=False)
    client.set("key", "value")
    assert store.get("key") == b"value"
    found: bool = vars(type(store))["libuvBackend"].fget(store)
    assert found is libuv


def test_a_gpu_is_chosen_at_once_where_cuda_is_in_use_and_else_once_it_is(monkeypatch):
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "_queued_calls", [])
    use_gpu(1)
    assert not chosen
    (call, _) = torch.cuda._queued_calls[0]  # CUDA is initialised
    call()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    use_gpu(2)
    assert chosen == [1, 2]
