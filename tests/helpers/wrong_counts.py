"""Models in Python with a wrong number of responses, in many styles: the code of the rule and the text after HEAD."""

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

AFTER_THE_LOOP = {
    "appended after the loop": """
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            out = pb_utils.Tensor("y", x * 2)
        responses.append(pb_utils.InferenceResponse(output_tensors=[out]))
        return responses
""",
    "added after the loop": """
    def execute(self, requests):
        answers = list()
        for index in range(len(requests)):
            tensor = pb_utils.get_input_tensor_by_name(requests[index], "x")
            result = np.tanh(tensor.as_numpy())
            response = pb_utils.InferenceResponse([pb_utils.Tensor("y", result)])
        answers += [response]
        return answers
""",
    "appended after a loop over the arrays": """
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        batch = np.concatenate(arrays)
        out = self.session.run(None, {"x": batch})[0]
        responses, start = [], 0
        for array in arrays:
            part = out[start : start + len(array)]
            start += len(array)
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", part)]))
        return responses
""",
    "appended in a helper, after its loop": """
    def execute(self, requests):
        return self._respond(requests)

    def _respond(self, batch):
        replies = []
        for n, request in enumerate(batch):
            value = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            reply = pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("y", value + n)])
        replies.append(reply)
        return replies
""",
    "built and appended after the loop": """
    def execute(self, requests):
        responses = []
        with torch.no_grad():
            for request in requests:
                y = torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()) * 2
        response = pb_utils.InferenceResponse([pb_utils.Tensor("y", y.numpy())])
        responses.append(response)
        return responses
""",
    "one more after the loop": """
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])
            responses.append(response)
        responses.append(response)
        return responses
""",
}

ONE_FOR_ALL = {
    "a literal list": """
    def execute(self, requests):
        joined = np.concatenate([pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests])
        return [pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("y", joined)])]
""",
    "appended once without a loop": """
    def execute(self, requests):
        images = np.vstack([pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests])
        with torch.no_grad():
            scores = self.model(torch.from_numpy(images)).numpy()
        responses = []
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", scores)]))
        return responses
""",
    "in a helper": """
    def execute(self, requests):
        data = []
        for request in requests:
            data.append(pb_utils.get_input_tensor_by_name(request, "x").as_numpy())
        return self._pack(np.concatenate(data, axis=0))

    def _pack(self, batch):
        tensor = pb_utils.Tensor("y", np.sqrt(batch))
        return [pb_utils.InferenceResponse(output_tensors=[tensor])]
""",
    "asynchronous": """
    async def execute(self, requests):
        parts = await asyncio.gather(*[self._read(request) for request in requests])
        out = np.concatenate(parts)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", out)])]

    async def _read(self, request):
        return pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
""",
    "one error for all": """
    def execute(self, requests):
        responses = []
        try:
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        except ValueError as error:
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))]
        return responses
""",
    "a list of its own for each request": """
    def execute(self, requests):
        for request in requests:
            responses = []
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return responses
""",
    "by name": """
    def execute(self, requests):
        batch = torch.cat([torch.from_numpy(pb_utils.get_input_tensor_by_name(r, "x").as_numpy()) for r in requests])
        response = pb_utils.InferenceResponse([pb_utils.Tensor("y", batch.numpy())])
        responses = [response]
        return responses
""",
}

SKIPPED = {
    "an input that may be missing": """
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "x")
            if tensor is None:
                pb_utils.Logger.log_warn("no x")
                continue
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", tensor.as_numpy())]))
        return responses
""",
    "returned from the loop": """
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
            return responses
""",
    "returned early after an error": """
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if np.isnan(x).any():
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("NaN")))
                return responses
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return responses
""",
    "no continue after an error": """
    def execute(self, requests):
        out = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if text.shape[1] > 512:
                out += [pb_utils.InferenceResponse(error=pb_utils.TritonError("too long"))]
            out += [pb_utils.InferenceResponse([pb_utils.Tensor("y", text)])]
        return out
""",
    "None is skipped": """
    def execute(self, requests):
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
    "filtered in a helper": """
    def execute(self, requests):
        return self._all(requests)

    def _all(self, requests):
        replies = []
        for request in requests:
            if pb_utils.get_input_tensor_by_name(request, "x").as_numpy().any():
                replies.append(pb_utils.InferenceResponse([]))
        return replies
""",
}

PER_ROW = {
    "one for each row": """
    def execute(self, requests):
        batch = np.concatenate([pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests])
        out = self.session.run(["y"], {"x": batch})[0]
        responses = []
        for row in out:
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", row[np.newaxis])]))
        return responses
""",
    "a comprehension over rows": """
    def execute(self, requests):
        rows = []
        for request in requests:
            rows.extend(pb_utils.get_input_tensor_by_name(request, "x").as_numpy())
        scores = self.model.predict(np.stack(rows))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", score[None])]) for score in scores]
""",
}

WRONG = {
    **{f"M813 {name}": ("M813", text) for name, text in AFTER_THE_LOOP.items()},
    **{f"M814 {name}": ("M814", text) for name, text in ONE_FOR_ALL.items()},
    **{f"M812 {name}": ("M812", text) for name, text in SKIPPED.items()},
    **{f"M819 {name}": ("M819", text) for name, text in PER_ROW.items()},
}
