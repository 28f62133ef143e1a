"""Correct models in Python that look like mistakes in the number of responses: the text after wrong_counts.HEAD."""

RIGHT = {
    "None after an exception": """
    def execute(self, requests):
        responses = []
        for request in requests:
            try:
                x = self.decode(pb_utils.get_input_tensor_by_name(request, "x").as_numpy())
            except ValueError as error:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
                x = None
            if x is not None:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return responses
""",
    "a flag": """
    def execute(self, requests):
        responses = []
        for request in requests:
            failed = False
            try:
                x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
                y = self.transform(x)
            except Exception as error:
                failed = True
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
            if not failed:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
""",
    "an error that is kept": """
    def execute(self, requests):
        responses = []
        for request in requests:
            error = None
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if x.ndim != 2:
                error = pb_utils.TritonError("two dimensions, please")
            if error is None:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
            if error is not None:
                responses.append(pb_utils.InferenceResponse(error=error))
        return responses
""",
    "the same condition twice": """
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if x.size > 0:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
            if not x.size > 0:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("empty")))
        return responses
""",
    "exclusive cases": """
    def execute(self, requests):
        responses = []
        for request in requests:
            mode = json.loads(request.parameters())["mode"]
            if mode == "a":
                responses.append(pb_utils.InferenceResponse([]))
            if mode == "b":
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("b")))
        return responses
""",
    "a pair of result and error": """
    def execute(self, requests):
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
    "an error raised and caught": """
    def execute(self, requests):
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
    "only one request": """
    def execute(self, requests):
        if len(requests) == 1:
            x = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])]
        return [self.answer(request) for request in requests]
""",
    "no requests": """
    def execute(self, requests):
        if not requests:
            return []
        responses = []
        for request in requests:
            responses.append(self.answer(request))
        return responses
""",
    "one error for each": """
    def execute(self, requests):
        try:
            return self._run(requests)
        except Exception as error:
            failed = pb_utils.TritonError(str(error))
            return [pb_utils.InferenceResponse(error=failed)] * len(requests)

    def _run(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
""",
    "prepared and filled": """
    def execute(self, requests):
        count = len(requests)
        responses = [None for _ in range(count)]
        for index, request in enumerate(requests):
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if x.size == 0:
                responses[index] = pb_utils.InferenceResponse(error=pb_utils.TritonError("empty"))
                continue
            responses[index] = pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])
        return responses
""",
    "passed to a helper": """
    def execute(self, requests):
        responses = []
        for request in requests:
            self._answer(request, responses)
        return responses

    def _answer(self, request, responses):
        responses.append(pb_utils.InferenceResponse([]))
""",
    "passed to other code": """
    def execute(self, requests):
        responses = []
        self.worker.fill(responses, [r.inputs() for r in requests])
        return responses
""",
    "by a dictionary": """
    def execute(self, requests):
        by_index = {}
        for index, request in enumerate(requests):
            if self.known(request):
                by_index[index] = pb_utils.InferenceResponse([])
            else:
                by_index[index] = pb_utils.InferenceResponse(error=pb_utils.TritonError("unknown"))
        return [by_index[index] for index in range(len(requests))]
""",
    "a loop over outputs": """
    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = []
            for name in self.names:
                x = pb_utils.get_input_tensor_by_name(request, name)
                if x is None:
                    continue
                tensors.append(pb_utils.Tensor(name + "_out", x.as_numpy()))
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
""",
    "errors first": """
    def execute(self, requests):
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
    "a match": """
    def execute(self, requests):
        responses = []
        for request in requests:
            match self._kind(request):
                case "text":
                    responses.append(self._text(request))
                case "picture":
                    responses.append(self._picture(request))
        return responses
""",
    "tried until it works": """
    def execute(self, requests):
        responses = []
        for request in requests:
            for attempt in range(3):
                try:
                    responses.append(self._answer(request))
                    break
                except ConnectionError:
                    continue
            else:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("unreachable")))
        return responses
""",
    "a generator": """
    def execute(self, requests):
        return list(self._answers(requests))

    def _answers(self, requests):
        for request in requests:
            yield pb_utils.InferenceResponse([])
""",
    "a loop with an else": """
    def execute(self, requests):
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
}
