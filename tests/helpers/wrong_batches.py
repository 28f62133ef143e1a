"""Models in Python that break or waste a batch, in many styles: the code of the rule and the text after HEAD."""

RAISED = {
    "a check": """
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if x.min() < 0:
                raise pb_utils.TritonModelException("x must not be negative")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.log(x))]))
        return responses
""",
    "an exception that is raised again": """
    def execute(self, requests):
        arrays = []
        for i, request in enumerate(requests):
            raw = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            try:
                arrays.append(json.loads(raw[0, 0]))
            except json.JSONDecodeError as error:
                raise RuntimeError(f"request {i}: {error}") from error
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([a]))]) for a in arrays]
""",
    "in a helper": """
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        self._check(x)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])

    def _check(self, array):
        if not np.isfinite(array).all():
            raise ValueError("not finite")
""",
    "an assertion": """
    def execute(self, requests):
        outputs = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            assert x.max() <= 255, "not a picture"
            outputs.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x / 255)]))
        return outputs
""",
    "a missing input": """
    def execute(self, requests):
        responses = []
        for i in range(len(requests)):
            tensor = pb_utils.get_input_tensor_by_name(requests[i], "x")
            if tensor is None:
                raise ValueError("x is missing")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", tensor.as_numpy())]))
        return responses
""",
}

BY_REQUEST = {
    "enumerated": """
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        result = self.session.run(None, {"x": np.concatenate(inputs, axis=0)})[0]
        responses = []
        for i, request in enumerate(requests):
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", result[i : i + 1])]))
        return responses
""",
    "split into equal parts": """
    def execute(self, requests):
        batch = np.vstack([pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests])
        parts = np.split(np.exp(batch), len(requests))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", part)]) for part in parts]
""",
    "zipped": """
    def execute(self, requests):
        tensors = []
        for request in requests:
            tensors.append(torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()))
        with torch.inference_mode():
            outputs = self.net(torch.cat(tensors, dim=0).to("cuda")).cpu()
        responses = []
        for request, output in zip(requests, outputs):
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", output.unsqueeze(0).numpy())]))
        return responses
""",
    "chunks": """
    def execute(self, requests):
        n = len(requests)
        x = torch.cat([torch.as_tensor(pb_utils.get_input_tensor_by_name(q, "x").as_numpy()) for q in requests])
        chunks = torch.chunk(self.model(x), n)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", c.numpy())]) for c in chunks]
""",
    "one row at a time": """
    def execute(self, requests):
        x = torch.cat([torch.from_numpy(pb_utils.get_input_tensor_by_name(r, "x").as_numpy()) for r in requests])
        parts = torch.split(self.model(x), 1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", parts[i].numpy())]) for i in range(len(requests))]
""",
    "a counter": """
    def execute(self, requests):
        texts = []
        for request in requests:
            texts += [text.decode() for text in pb_utils.get_input_tensor_by_name(request, "x").as_numpy().flatten()]
        logits = self.model(**self.tokenizer(texts, padding=True, return_tensors="pt")).logits
        responses, number = [], 0
        for request in requests:
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", logits[number].numpy())]))
            number += 1
        return responses
""",
    "equal shares": """
    def execute(self, requests):
        rows = np.concatenate([pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests])
        share = rows.shape[0] // len(requests)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", rows[i * share : (i + 1) * share])])
            for i in range(len(requests))
        ]
""",
    "by index in a comprehension": """
    def execute(self, requests):
        joined = np.concatenate([self._x(request) for request in requests])
        y = joined.astype(np.float32) * 2
        return [
            pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("y", y[k][None, :])])
            for k in range(len(requests))
        ]

    def _x(self, request):
        return pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
""",
}

PER_REQUEST = {
    "a session": """
    def initialize(self, args):
        self.ranker = ort.InferenceSession("ranker.onnx")

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            (y,) = self.ranker.run(["y"], {"x": x})
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
""",
    "a module": """
    def initialize(self, args):
        self.backbone = torch.jit.load("model.pt").to("cuda").eval()

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    @torch.no_grad()
    def answer(self, request):
        x = torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()).cuda()
        y = self.backbone(x)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", y.cpu().numpy())])
""",
    "over the arrays": """
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        results = [self.model.predict(array) for array in arrays]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", result)]) for result in results]
""",
    "mapped": """
    def execute(self, requests):
        return list(map(self._infer, requests))

    def _infer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        y = self.session.run(None, {self.session.get_inputs()[0].name: x})
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", y[0])])
""",
    "a class of the file": """
    def initialize(self, args):
        self.engine = Engine()

    def execute(self, requests):
        answers = map(lambda r: self.engine.infer(pb_utils.get_input_tensor_by_name(r, "x").as_numpy()), requests)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", answer)]) for answer in answers]


class Engine:
    def __init__(self):
        self.session = ort.InferenceSession("model.onnx")

    def infer(self, x):
        return self.session.run(None, {"x": x})[0]
""",
    "a generator": """
    def execute(self, requests):
        return list(self._answers(requests))

    def _answers(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            yield pb_utils.InferenceResponse([pb_utils.Tensor("y", self.session.run(None, {"x": x})[0])])
""",
    "by index": """
    def execute(self, requests):
        out = [None] * len(requests)
        for i in range(len(requests)):
            x = torch.tensor(pb_utils.get_input_tensor_by_name(requests[i], "x").as_numpy())
            with torch.no_grad():
                logits = self.classifier.forward(x)
            out[i] = pb_utils.InferenceResponse([pb_utils.Tensor("y", logits.numpy())])
        return out

    def initialize(self, args):
        self.classifier = torch.load("classifier.pt")
""",
    "asynchronous": """
    async def execute(self, requests):
        return list(await asyncio.gather(*[self.one(request) for request in requests]))

    async def one(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", self.net(torch.from_numpy(x)).numpy())])
""",
}

BLOCKED = {
    "a pause": """
    def execute(self, requests):
        time.sleep(0.01)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(r, "x").as_numpy())])
            for r in requests
        ]
""",
    "urllib in a helper": """
    def execute(self, requests):
        responses = []
        for request in requests:
            address = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()[0, 0].decode()
            picture = self._download(address)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.frombuffer(picture, np.uint8))]))
        return responses

    def _download(self, address):
        with urllib.request.urlopen(address, timeout=5) as answer:
            return answer.read()
""",
    "requests": """
    def execute(self, batch):
        import requests

        texts = [pb_utils.get_input_tensor_by_name(item, "x").as_numpy() for item in batch]
        features = requests.post("http://features/lookup", json={"ids": [t.tolist() for t in texts]}).json()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([f]))]) for f in features["rows"]]
""",
    "a pause between tries": """
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        from time import sleep

        for attempt in range(3):
            value = self.cache.get(request.request_id())
            if value is not None:
                break
            sleep(0.1)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", value)])
""",
}

WRONG = {
    **{f"M815 {name}": ("M815", text) for name, text in RAISED.items()},
    **{f"M816 {name}": ("M816", text) for name, text in BY_REQUEST.items()},
    **{f"M817 {name}": ("M817", text) for name, text in PER_REQUEST.items()},
    **{f"M818 {name}": ("M818", text) for name, text in BLOCKED.items()},
}
