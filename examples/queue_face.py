"""The simple face: queue.Queue on disk. What was got and not done comes again."""

import os
import tempfile
import threading

import penstock


def work(queue, results):
    while True:
        item = queue.get()
        if item == b"stop":
            queue.task_done()
            return
        results.append(int(item) ** 2)
        queue.task_done()  # removes it for good; get alone does not


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "jobs")

    with penstock.Queue(path) as queue:
        queue.put_many([b"1", b"2", b"3"])
        assert queue.get() == b"1"  # got and not done
    with penstock.Queue(path) as queue:
        assert len(queue) == 3  # so it is there again

        results = []
        threads = [threading.Thread(target=work, args=(queue, results)) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert queue.join(timeout=30)  # until everything that was put is done
        queue.put_many([b"stop", b"stop"])
        for thread in threads:
            thread.join()
        assert sorted(results) == [1, 4, 9]

        queue.put(b"bad")
        assert queue.get_nowait() == b"bad"
        queue.task_failed("cannot be parsed", delay=0)  # comes again, and after max_deliveries is a dead letter
        assert queue.get(timeout=5) == b"bad"
        queue.task_done()
    print(f"results {sorted(results)}")
