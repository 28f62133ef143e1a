"""Correct auto_complete_config and decoupled models: fields of config.pbtxt and the text after wrong_counts.HEAD."""

from wrong_completions import BATCHED, EXECUTE, SENDS

FINAL = "pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"
COMPLETED = {
    "as the file": (
        BATCHED,
        """
        x = {"name": "x", "data_type": "TYPE_FP32", "dims": [2]}
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        config.add_input(x)
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [2]})
        return config
""",
    ),
    "only what is missing": (
        BATCHED,
        """
        known = [tensor["name"] for tensor in config.as_dict()["input"]]
        for tensor in [{"name": "x", "data_type": "TYPE_INT64", "dims": [-1]}]:
            if tensor["name"] not in known:
                config.add_input(tensor)
        if config.as_dict()["max_batch_size"] == 0:
            config.set_max_batch_size(4)
        return config
""",
    ),
    "one more input": (
        BATCHED,
        """
        config.add_input({"name": "mask", "data_type": "TYPE_BOOL", "dims": [2], "optional": True})
        return config
""",
    ),
    "from elsewhere": (
        BATCHED,
        """
        for tensor in read_schema():
            config.add_input(tensor)
        config.set_max_batch_size(read_limit())
        return config
""",
    ),
    "a new policy": (
        BATCHED,
        """
        config.set_model_transaction_policy({"decoupled": False})
        return config
""",
    ),
}
STREAMS = {
    "scheduled again": f"""
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            self.left -= 1
            if self.left:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                sender.send(pb_utils.InferenceResponse([]))
            else:
                sender.send(pb_utils.InferenceResponse([]), flags={FINAL})
""",
    "both modes": f"""
    def execute(self, requests):
        return self.stream(requests) if self.decoupled else self.answer(requests)

    def stream(self, requests):
        for request in requests:
            request.get_response_sender().send(pb_utils.InferenceResponse([]), flags={FINAL})

    def answer(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
""",
    "both modes by a branch": f"""
    def execute(self, requests):
        if self.decoupled:
            return self.stream(requests)
        return [pb_utils.InferenceResponse([]) for _ in requests]

    def stream(self, requests):
        for request in requests:
            request.get_response_sender().send(pb_utils.InferenceResponse([]), flags={FINAL})
""",
    "flags at the last": f"""
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            parts = self.parts(request)
            for index, part in enumerate(parts):
                is_last = index == len(parts) - 1
                sender.send(pb_utils.InferenceResponse([part]), flags={FINAL} if is_last else 0)
""",
    "in a thread": f"""
    def execute(self, requests):
        for request in requests:
            self.pool.submit(self.stream, request.get_response_sender(), request)
        return None

    def stream(self, sender, request):
        time.sleep(0.1)
        sender.send(pb_utils.InferenceResponse([]))
        sender.send(flags={FINAL})
""",
    "finally": f"""
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                for part in self.parts(request):
                    sender.send(pb_utils.InferenceResponse([part]))
            except ValueError as error:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
            finally:
                sender.send(flags={FINAL})
        return
""",
    "in a helper": f"""
    def execute(self, requests):
        senders = [request.get_response_sender() for request in requests]
        for sender in senders:
            sender.send(pb_utils.InferenceResponse([]))
        self.close(senders)

    def close(self, senders):
        for sender in senders:
            sender.send(flags={FINAL})
""",
}
RIGHT = {
    **{
        name: (config, f"    @staticmethod\n    def auto_complete_config(config):{text}{EXECUTE}")
        for name, (config, text) in COMPLETED.items()
    },
    **{name: (SENDS, text) for name, text in STREAMS.items()},
}
