"""Correct models in Python that look like broken or wasted batches: the text after wrong_counts.HEAD."""

RIGHT = {
    "split by rows": """
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        sizes = [len(array) for array in arrays]
        out = self.session.run(None, {"x": np.concatenate(arrays)})[0]
        parts = np.split(out, np.cumsum(sizes)[:-1])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", part)]) for part in parts]
""",
    "split with offsets": """
    def execute(self, requests):
        batch, counts = [], []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            batch.append(x)
            counts.append(x.shape[0])
        y = self.model(torch.from_numpy(np.vstack(batch))).numpy()
        responses, offset = [], 0
        for count in counts:
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y[offset : offset + count])]))
            offset += count
        return responses
""",
    "torch.split": """
    def execute(self, requests):
        tensors = [torch.from_numpy(pb_utils.get_input_tensor_by_name(r, "x").as_numpy()) for r in requests]
        with torch.no_grad():
            outputs = self.net(torch.cat(tensors))
        parts = torch.split(outputs, [t.shape[0] for t in tensors])
        responses = []
        for request, part in zip(requests, parts):
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", part.numpy())]))
        return responses
""",
    "the first row of each": """
    def execute(self, requests):
        pictures = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy()[0] for r in requests]
        scores = self.session.run(None, {"x": np.stack(pictures)})[0]
        responses = []
        for i in range(len(requests)):
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", scores[i][None])]))
        return responses
""",
    "one row is checked": """
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        if any(array.shape[0] != 1 for array in arrays):
            raise pb_utils.TritonModelException("one row each")
        y = np.concatenate(arrays) * 2
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", y[i : i + 1])]) for i in range(len(requests))]
""",
    "several outputs": """
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        ends = np.cumsum([len(a) for a in arrays])
        outputs = self.session.run(None, {"x": np.concatenate(arrays)})
        responses = []
        for array, end in zip(arrays, ends):
            tensors = []
            for i, name in enumerate(self.names):
                tensors.append(pb_utils.Tensor(name, outputs[i][end - len(array) : end]))
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
""",
    "an iterator over rows": """
    def execute(self, requests):
        texts, counts = [], []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "x").as_numpy().ravel()
            texts.extend(text.decode() for text in rows)
            counts.append(len(rows))
        vectors = iter(self.encoder.encode(texts))
        responses = []
        for count in counts:
            y = np.stack([next(vectors) for _ in range(count)])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
""",
    "a padded stack": """
    def execute(self, requests):
        ids = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy().reshape(-1) for r in requests]
        padded = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(i) for i in ids], batch_first=True)
        logits = self.model(padded)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", logits[i, : len(row)].numpy())])
            for i, row in enumerate(ids)
        ]
""",
    "preprocessing for each": """
    def execute(self, requests):
        batch = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            batch.append(self.tokenizer(text.tolist(), padding=True)["input_ids"])
        return self.respond(self.model.generate(self.pad(batch)), requests)
""",
    "alone after a failure": """
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        try:
            y = self.session.run(None, {"x": np.concatenate(arrays)})[0]
            parts = np.split(y, np.cumsum([len(a) for a in arrays])[:-1])
        except Exception:
            parts = [self.session.run(None, {"x": array})[0] for array in arrays]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", part)]) for part in parts]
""",
    "grouped by shape": """
    def execute(self, requests):
        groups = {}
        for index, request in enumerate(requests):
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            groups.setdefault(x.shape[1:], []).append((index, x))
        responses = [None] * len(requests)
        for members in groups.values():
            y = self.session.run(None, {"x": np.concatenate([x for _, x in members])})[0]
            start = 0
            for index, x in members:
                responses[index] = pb_utils.InferenceResponse([pb_utils.Tensor("y", y[start : start + len(x)])])
                start += len(x)
        return responses
""",
    "a wrong setting": """
    def execute(self, requests):
        if self.mode not in ("fast", "exact"):
            raise pb_utils.TritonModelException(f"unknown mode {self.mode}")
        return [pb_utils.InferenceResponse([]) for _ in requests]
""",
    "a caught check": """
    def execute(self, requests):
        return [self._safe(request) for request in requests]

    def _safe(self, request):
        try:
            return self._answer(request)
        except ValueError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))

    def _answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        if x.min() < 0:
            raise ValueError("negative")
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])
""",
    "the whole batch fails": """
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        try:
            y = self.session.run(None, {"x": np.concatenate(arrays)})[0]
        except RuntimeError as error:
            raise pb_utils.TritonModelException("out of memory") from error
        ends = np.cumsum([len(a) for a in arrays])[:-1]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", part)]) for part in np.split(y, ends)]
""",
    "downloads at the start": """
    def initialize(self, args):
        with urllib.request.urlopen("http://store/labels.json") as answer:
            self.labels = json.load(answer)
        time.sleep(1)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
""",
    "sleeps elsewhere": """
    def initialize(self, args):
        import threading

        threading.Thread(target=self._reload, daemon=True).start()

    def _reload(self):
        while True:
            time.sleep(60)
            urllib.request.urlopen("http://store/labels.json")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
""",
    "awaited": """
    async def execute(self, requests):
        return list(await asyncio.gather(*(self._one(request) for request in requests)))

    async def _one(self, request):
        await asyncio.sleep(0.01)
        features = await self.http.get("http://features/" + request.request_id())
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array(features.json()))])
""",
    "get of a dictionary": """
    def execute(self, requests):
        answers = []
        for request in requests:
            options = json.loads(request.parameters() or "{}")
            scale = options.get("scale", self.defaults.get("scale"))
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x * np.float32(scale))]))
        return answers
""",
    "one answer of a network for all": """
    def execute(self, requests):
        prompts = []
        for request in requests:
            for row in pb_utils.get_input_tensor_by_name(request, "x").as_numpy():
                prompts.append(row[0].decode())
        results = self.pipeline(prompts)
        responses, position = [], 0
        for request in requests:
            rows = len(pb_utils.get_input_tensor_by_name(request, "x").as_numpy())
            y = np.array([[result["label"]] for result in results[position : position + rows]], dtype=object)
            position += rows
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
""",
    "calls of another model at once": """
    async def execute(self, requests):
        calls = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x")
            call = pb_utils.InferenceRequest(model_name="net", requested_output_names=["y"], inputs=[x])
            calls.append(call.async_exec())
        answers = await asyncio.gather(*calls)
        return [pb_utils.InferenceResponse(answer.output_tensors()) for answer in answers]
""",
    "vectorised afterwards": """
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        means = np.concatenate(arrays).mean(axis=0)
        responses = []
        for i, array in enumerate(arrays):
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", array - means[i % 2])]))
        return responses
""",
    "an invariant": """
    def execute(self, requests):
        arrays = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "x")
            assert tensor.is_cpu() and tensor.as_numpy().ndim == 2
            for other in request.inputs():
                if other.name() not in self.names:
                    raise ValueError("not in config.pbtxt")
            arrays.append(tensor.as_numpy())
        return self.respond(arrays)
""",
    "a pause that the client asks for": """
    def execute(self, requests):
        responses = []
        for request in requests:
            seconds = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            time.sleep(float(seconds[0, 0]))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", seconds)]))
        return responses
""",
    "one append of two": """
    def execute(self, requests):
        good = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            good.append(pb_utils.InferenceResponse([])) if x.any() else good.append(self.failed("zero"))
        return good
""",
}
