"""Answers of newer servers as their source writes them. None of these servers was run.

`r26.08` is the branch of that release in Triton's repositories.
"""

from tritonclient.grpc import model_config_pb2 as pb

METADATA = {
    "name": "triton",
    "version": "2.72.0",
    "extensions": [
        *("classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy"),
        *("model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data", "parameters"),
        *("statistics", "trace", "logging"),
    ],
}
"""GET /v2 of 26.08. Source: core, src/server.cc (the extensions, the same in r24.10 and r26.06); server, TRITON_VERSION
and src/http_server.cc of r26.08 (HandleServerMetadata, the same as in r24.10). Only the version differs from 2.51's."""

HELP = """\
  --allow-client-shm <boolean>
\tAllow clients to register/unregister and use shared memory regions
"""
"""A flag in `tritonserver --help`. Source: server, src/command_line_parser.cc of r26.04 and r26.08."""

MEMORY_REFUSED = (12, "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")
"""gRPC's status (UNIMPLEMENTED) and text for SystemSharedMemoryRegister and -Unregister without the flag; the status of
the regions is told. Source: server, src/common.h (kClientShmDisabledErrorStr), src/grpc/grpc_server.cc and
src/grpc/grpc_utils.cc of r26.04 and r26.08; qa/L0_shared_memory/shared_memory_test.py."""

HISTOGRAM = """\
# HELP nv_inference_first_response_histogram_ms Duration from request to first response in milliseconds
# TYPE nv_inference_first_response_histogram_ms histogram
nv_inference_first_response_histogram_ms_count{model="my_model",version="1"} 37
nv_inference_first_response_histogram_ms_sum{model="my_model",version="1"} 10771
nv_inference_first_response_histogram_ms_bucket{model="my_model",version="1",le="100"} 8
nv_inference_first_response_histogram_ms_bucket{model="my_model",version="1",le="500"} 30
nv_inference_first_response_histogram_ms_bucket{model="my_model",version="1",le="2000"} 36
nv_inference_first_response_histogram_ms_bucket{model="my_model",version="1",le="5000"} 37
nv_inference_first_response_histogram_ms_bucket{model="my_model",version="1",le="+Inf"} 37
"""
"""Metrics of a model that is not decoupled, from 26.01 on. Source: server, docs/user_guide/metrics.md of r26.08 (the
values) and qa/L0_metrics/histogram_metrics_test.py (the names, which the page shortens); core, src/metrics.cc."""

DYNAMO_CONFIG = pb.ModelConfig(
    name="clip",
    max_batch_size=4,
    input=[{"name": "query", "data_type": "TYPE_STRING", "dims": [-1]}],
    output=[{"name": "text_embeddings", "data_type": "TYPE_FP32", "dims": [-1]}],
)
"""ModelConfig of `dynamo.triton`, whose ModelMetadata, before ai-dynamo/dynamo pull request 14996, has shapes without
the batch axis. Source: ai-dynamo/dynamo issue 14969 (lib/llm/src/grpc/service/kserve.rs, model_metadata)."""
