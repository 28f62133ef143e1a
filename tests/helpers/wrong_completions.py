"""Python models with mistakes in auto_complete_config, and decoupled ones: code, fields of config.pbtxt and text."""

EXECUTE = """
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(r, "x").as_numpy())])
            for r in requests
        ]
"""
BATCHED = "dynamic_batching { }"
SENDS = "model_transaction_policy { decoupled: true }"

COMPLETED = {
    "smaller": ("M841", BATCHED, "    def auto_complete_config(config):\n        config.set_max_batch_size(4)\n"),
    "smaller, by name": (
        "M841",
        BATCHED,
        "    def auto_complete_config(config):\n        limit = 1\n"
        "        config.set_max_batch_size(max_batch_size=limit)\n",
    ),
    "larger": ("M842", BATCHED, "    def auto_complete_config(config):\n        config.set_max_batch_size(64)\n"),
    "another type": (
        "M843",
        BATCHED,
        "    def auto_complete_config(config):\n"
        '        config.add_input({"name": "x", "data_type": "TYPE_INT64", "dims": [2]})\n',
    ),
    "other dims": (
        "M843",
        BATCHED,
        "    def auto_complete_config(config):\n"
        '        outputs = [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1, 2]}]\n'
        "        for output in outputs:\n            config.add_output(output)\n",
    ),
    "no dims": (
        "M844",
        BATCHED,
        '    def auto_complete_config(config):\n        x = dict(name="x", data_type="TYPE_FP32")\n'
        "        config.add_input(x)\n",
    ),
    "a key too many": (
        "M844",
        BATCHED,
        "    def auto_complete_config(config):\n"
        '        x = {"name": "x", "data_type": "TYPE_FP32", "dims": [2], "allow_ragged_batch": True}\n'
        "        config.add_input(x)\n",
    ),
    "optional output": (
        "M844",
        BATCHED,
        "    def auto_complete_config(config):\n"
        '        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [2], "optional": False})\n',
    ),
    "another scheduler": (
        "M845",
        "sequence_batching { }",
        "    def auto_complete_config(config):\n        config.set_dynamic_batching()\n",
    ),
    "another policy": (
        "M846",
        "model_transaction_policy { decoupled: false }",
        "    def auto_complete_config(config):\n        policy = {'decoupled': True}\n"
        "        config.set_model_transaction_policy(policy)\n",
    ),
    "an unknown policy": (
        "M846",
        BATCHED,
        "    def auto_complete_config(config):\n        config.set_model_transaction_policy(dict(streaming=True))\n",
    ),
}
RETURNS_NOTHING = (
    "M847",
    BATCHED,
    f"    @staticmethod\n    def auto_complete_config(config):\n        config.set_max_batch_size(8)\n{EXECUTE}",
)

STREAMS = {
    "sends and returns": (
        "M826",
        """
    def execute(self, requests):
        responses = []
        for request in requests:
            sender = request.get_response_sender()
            response = pb_utils.InferenceResponse([])
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            responses.append(response)
        return responses
""",
    ),
    "sends and returns a comprehension": (
        "M826",
        """
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        response = pb_utils.InferenceResponse([])
        request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return response
""",
    ),
    "never the last": (
        "M824",
        """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for part in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.full((1, 2), part, np.float32))]))
""",
    ),
    "the last only after an error, asynchronous": (
        "M824",
        """
    async def execute(self, requests):
        await asyncio.gather(*[self.stream(request) for request in requests])

    async def stream(self, request):
        sender = request.get_response_sender()
        try:
            async for word in self.engine.words(request.request_id()):
                sender.send(pb_utils.InferenceResponse([word]))
        except ValueError as error:
            failed = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
            sender.send(failed, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
    ),
    "flags of zero": (
        "M824",
        """
    def execute(self, requests):
        for request in requests:
            request.get_response_sender().send(response=pb_utils.InferenceResponse([]), flags=0)
        return None
""",
    ),
    "the last only after an error": (
        "M824",
        """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
            except ValueError as error:
                failed = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
                sender.send(failed, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
    ),
}

WRONG = {
    **{
        f"{code} {name}": (code, config, f"    @staticmethod\n{text}        return config\n{EXECUTE}")
        for name, (code, config, text) in COMPLETED.items()
    },
    "M847 nothing is returned": RETURNS_NOTHING,
    **{f"{code} {name}": (code, SENDS, text) for name, (code, text) in STREAMS.items()},
}
