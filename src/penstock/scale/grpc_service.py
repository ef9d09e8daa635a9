"""KEDA's external scaler service from its descriptor: handlers for a server, and a client.

The gRPC compiler would generate the same as 270 lines of untyped code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message_factory import GetMessageClass

from penstock.scale.proto import externalscaler_pb2 as pb

_DESCRIPTOR: Final = pb.DESCRIPTOR.services_by_name["ExternalScaler"]
SERVICE: Final = _DESCRIPTOR.full_name


def service_handler(servicer: object) -> grpc.GenericRpcHandler[Any, Any]:
    """Calls the servicer's method of the same name for each method of the service."""
    handlers = {}
    for method in _DESCRIPTOR.methods:
        make: Any = grpc.unary_unary_rpc_method_handler
        if method.server_streaming:
            make = grpc.unary_stream_rpc_method_handler
        handlers[method.name] = make(
            getattr(servicer, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


class ExternalScalerStub:
    """A client of the service, on a channel of either kind of gRPC; its methods are named as KEDA's."""

    def __init__(self, channel: Any) -> None:
        for method in _DESCRIPTOR.methods:
            make = channel.unary_stream if method.server_streaming else channel.unary_unary
            call = make(
                f"/{SERVICE}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, call)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
