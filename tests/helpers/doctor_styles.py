"""Models in Python in many styles, wrong and right, for the rules for model.py.

Each text is the body of `execute`, or, with `def` at its beginning, of the class, or, with a deeper indent, of the loop
over the requests; `HEAD` and what it lacks go before it.
"""

HEAD = """\
import asyncio
import json
import time
import urllib.request

import numpy as np
import onnxruntime as ort
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
"""
EXECUTE = "    def execute(self, requests):"
LOOP = f"""{EXECUTE}
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()"""


def source(text: str) -> str:
    """The whole model.py of a style."""
    if text.startswith("\n            "):
        return f"{HEAD}{LOOP}{text}        return responses\n"
    return HEAD + (EXECUTE if text.startswith("\n        ") else "") + text


WRONG = {
    "M812 None is skipped": """
        responses = []
        for request in requests:
            response = None
            try:
                x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
                response = pb_utils.InferenceResponse([pb_utils.Tensor("y", 1 / x)])
            except ZeroDivisionError:
                pb_utils.Logger.log_error("division")
            if response is not None:
                responses.append(response)
        return responses
""",
    "M812 returned from the loop": """
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
            return responses
""",
    "M812 no continue after an error": """
            if x.shape[1] > 512:
                responses += [pb_utils.InferenceResponse(error=pb_utils.TritonError("too long"))]
            responses += [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])]
""",
    "M814 added after the loop": """
        answers = list()
        for index in range(len(requests)):
            tensor = pb_utils.get_input_tensor_by_name(requests[index], "x")
            result = np.tanh(tensor.as_numpy())
            response = pb_utils.InferenceResponse([pb_utils.Tensor("y", result)])
        answers += [response]
        return answers
""",
    "M815 an assertion": """
            assert x.max() <= 255, "not a picture"
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x / 255)]))
""",
    "M815 in a helper": """
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        self._check(x)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])

    def _check(self, array):
        if not np.isfinite(array).all():
            raise ValueError("not finite")
""",
    "M816 a counter": """
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
    "M816 one row at a time": """
        x = torch.cat([torch.from_numpy(pb_utils.get_input_tensor_by_name(r, "x").as_numpy()) for r in requests])
        parts = torch.split(self.model(x), 1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", parts[i].numpy())]) for i in range(len(requests))]
""",
    "M816 zipped": """
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
    "M816 equal shares": """
        rows = np.concatenate([pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests])
        share = rows.shape[0] // len(requests)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", rows[i * share : (i + 1) * share])])
            for i in range(len(requests))
        ]
""",
    "M817 a generator": """
        return list(self._answers(requests))

    def _answers(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            yield pb_utils.InferenceResponse([pb_utils.Tensor("y", self.session.run(None, {"x": x})[0])])
""",
    "M817 a class of the file": """
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
    "M817 a module": """
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
    "M818 a pause between tries": """
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
    "M818 urllib in a helper": """
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
    "M819 a comprehension over rows": """
        rows = []
        for request in requests:
            rows.extend(pb_utils.get_input_tensor_by_name(request, "x").as_numpy())
        scores = self.model.predict(np.stack(rows))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", score[None])]) for score in scores]
""",
    "M820 one tensor for all": """
        arrays = []
        for request in requests:
            arrays.append(pb_utils.get_input_tensor_by_name(request, "x").as_numpy())
        scores = self.session.run(None, {"x": np.vstack(arrays)})[0]
        tensor = pb_utils.Tensor("y", scores.astype(np.float32))
        return [pb_utils.InferenceResponse(output_tensors=[tensor]) for _ in requests]
""",
    "M820 one response for all": """
        x = torch.cat([torch.from_numpy(pb_utils.get_input_tensor_by_name(r, "x").as_numpy()) for r in requests])
        response = pb_utils.InferenceResponse([pb_utils.Tensor("y", self.model(x).cpu().numpy())])
        return [response] * len(requests)
""",
    "M820 sent": """
        rows = np.concatenate([pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests])
        for request in requests:
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", rows * 2)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
    "M828 one text": """
        responses = []
        for request in requests:
            prompt = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()[0, 0].decode("utf-8")
            text = self.generator.complete(prompt, max_tokens=20)
            y = np.array([[text.encode()]], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
""",
    "M828 in a helper": """
        return [self.answer(request) for request in requests]

    def answer(self, request):
        row = pb_utils.get_input_tensor_by_name(request, "x").as_numpy().flatten()[0]
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.full((1, 1), row * 2))])
""",
    "M829 await in a helper": """
    async def execute(self, requests):
        return [await self._one(request) for request in requests]

    async def _one(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x")
        pending = pb_utils.InferenceRequest(model_name="m", requested_output_names=["y"], inputs=[x]).async_exec()
        answer = await asyncio.wait_for(pending, 1)
        return pb_utils.InferenceResponse(answer.output_tensors())
""",
    "M821 generator": """
        for request in requests:
            yield pb_utils.InferenceResponse([])
""",
    "M822 nothing": """
        return [None for request in requests]
""",
}
"""By the code that is found."""
RIGHT = {
    "an error raised and caught": """
        responses = []
        for request in requests:
            try:
                x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
                if x.shape[0] != 1:
                    raise ValueError("one row only")
                response = pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])
            except ValueError as error:
                response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
            finally:
                self.count += 1
            responses.append(response)
        return responses
""",
    "errors first": """
        errors = [self._problem(request) for request in requests]
        good = [request for request, error in zip(requests, errors) if error is None]
        answers = iter(self._answers(good))
        responses = []
        for error in errors:
            if error is None:
                responses.append(next(answers))
            else:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(error)))
        return responses

    def _answers(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
""",
    "the same condition twice": """
            if x.size > 0:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
            if not x.size > 0:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("empty")))
""",
    "a pair of result and error": """
        responses = []
        for request in requests:
            result, error = self._try(request)
            if error:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(error)))
            if result is not None:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", result)]))
        return responses

    def _try(self, request):
        try:
            return pb_utils.get_input_tensor_by_name(request, "x").as_numpy() + 1, None
        except Exception as error:
            return None, str(error)
""",
    "only one request": """
        if len(requests) == 1:
            x = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])]
        return [self.answer(request) for request in requests]
""",
    "no requests": """
        if not requests:
            return []
        responses = []
        for request in requests:
            responses.append(self.answer(request))
        return responses
""",
    "one error for each": """
        try:
            return self._run(requests)
        except Exception as error:
            failed = pb_utils.TritonError(str(error))
            return [pb_utils.InferenceResponse(error=failed)] * len(requests)

    def _run(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
""",
    "a match": """
        responses = []
        for request in requests:
            match self._kind(request):
                case "text":
                    responses.append(self._text(request))
                case "picture":
                    responses.append(self._picture(request))
        return responses
""",
    "a loop with an else": """
        responses = []
        for request in requests:
            for tensor in request.inputs():
                if tensor.name() == "x":
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", tensor.as_numpy())]))
                    break
            else:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("no x")))
        return responses
""",
    "passed to a helper": """
        responses = []
        for request in requests:
            self._answer(request, responses)
        return responses

    def _answer(self, request, responses):
        responses.append(pb_utils.InferenceResponse([]))
""",
    "an invariant": """
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
    "one append of two": """
            responses.append(pb_utils.InferenceResponse([])) if x.any() else responses.append(self.failed("zero"))
""",
    "one answer of a network for all": """
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
    "alone after a failure": """
        arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        try:
            y = self.session.run(None, {"x": np.concatenate(arrays)})[0]
            parts = np.split(y, np.cumsum([len(a) for a in arrays])[:-1])
        except Exception:
            parts = [self.session.run(None, {"x": array})[0] for array in arrays]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", part)]) for part in parts]
""",
    "grouped by shape": """
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
    "with and match": """
        responses = []
        with self.lock:
            for request in requests:
                match request.request_id():
                    case "a":
                        responses.append(pb_utils.InferenceResponse([]))
                    case _:
                        responses.append(pb_utils.InferenceResponse([]))
        return responses
""",
    "inner function": """
        def answer(request):
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            yield pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])

        return [next(answer(request)) for request in requests]
""",
    "map": """
        return list(map(self.answer, requests))

    def answer(self, request):
        return pb_utils.InferenceResponse([])
""",
    "every case": """
            if x.size == 0:
                error = "empty"
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
            elif x.size > 0:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
""",
    "queue": """
        for request in requests:
            self.queue.put(request)
        return None
""",
    "calls gathered": """
    async def execute(self, requests):
        calls = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x")
            call = pb_utils.InferenceRequest(model_name="m", requested_output_names=["y"], inputs=[x])
            calls.append(call.async_exec())
        return [pb_utils.InferenceResponse((await call).output_tensors()) for call in calls]
""",
    "coroutines gathered": """
    async def execute(self, requests):
        return list(await asyncio.gather(*[self._one(request) for request in requests]))

    async def _one(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x")
        answer = await pb_utils.InferenceRequest(model_name="m", requested_output_names=["y"], inputs=[x]).async_exec()
        return pb_utils.InferenceResponse(answer.output_tensors())
""",
    "one call for all": """
        arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        x = pb_utils.Tensor("x", np.concatenate(arrays))
        answer = pb_utils.InferenceRequest(model_name="m", requested_output_names=["y"], inputs=[x]).exec()
        y = pb_utils.get_output_tensor_by_name(answer, "y").as_numpy()
        parts = np.split(y, np.cumsum([len(a) for a in arrays])[:-1])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", part)]) for part in parts]
""",
    "a setting of the first row": """
            scale = float(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()[0, 0])
            first = x[0]
            y = np.stack([(row - first) * scale for row in x])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
""",
    "a model of the first row": """
        responses = []
        for request in requests:
            language = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()[0][0].decode()
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            y = np.repeat(self.tables[language][None], len(x), axis=0)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
""",
    "one row is checked": """
            if x.shape[0] != 1:
                error = pb_utils.TritonError("one row, please")
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x[0][None])]))
""",
    "rows one by one": """
            texts = [self.tidy(x[i][0].decode()) for i in range(x.shape[0])]
            y = np.array([[text.encode()] for text in texts], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
""",
    "parts of one request joined": """
        responses = []
        for request in requests:
            parts = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.names]
            y = np.concatenate(parts)[: len(parts[0])]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
""",
    "one request alone": """
        if len(requests) == 1:
            x = np.concatenate([pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests])
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]) for _ in requests]
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("one at a time")) for _ in requests]
""",
    "outputs split": """
        lengths = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy().shape[0] for r in requests]
        joined = np.concatenate([pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests])
        outputs = self.session.run(None, {"x": joined})
        ends = np.cumsum(lengths)
        responses = []
        for end, length in zip(ends, lengths):
            tensors = [pb_utils.Tensor(name, output[end - length : end]) for name, output in zip(self.names, outputs)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
""",
    "a request for another model": """
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            options = pb_utils.Tensor("first", np.array([[x[0, 0]]]))
            answers.append(self.client.infer(options, x))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", answer)]) for answer in answers]
""",
}
