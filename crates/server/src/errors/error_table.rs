//! [`DOCUMENTED`]: every status and code with its occasion, for the documentation.
//!
//! Only people read it. Invariant: every status and code of an error has a row.

/// Every status and code with its occasion, for the documentation.
pub(crate) const DOCUMENTED: &[(u16, &str, &str)] = &[
    (
        400,
        "malformed_json",
        "the body is not JSON, not an object or not UTF-8",
    ),
    (
        400,
        "invalid_value",
        "a field has a wrong type or value, or a required one is missing; `param` is its path",
    ),
    (
        400,
        "unknown_parameter",
        "a field that no API of the endpoint has",
    ),
    (
        400,
        "unsupported_parameter",
        "a field of the official API that is not implemented",
    ),
    (
        400,
        "context_length_exceeded",
        "the prompt does not fit; the message has both numbers",
    ),
    (
        400,
        "chat_template_error",
        "the model has no chat template, or it refused the messages",
    ),
    (
        400,
        "shape_failed",
        "the answer grew beyond what the limits of its schema or grammar allow for a token, or `logit_bias` forbids all that they allow",
    ),
    (401, "invalid_api_key", "no key, or a wrong one"),
    (
        403,
        "forbidden_origin",
        "a web page of another origin, which `--cors-origin` does not name, sent the request",
    ),
    (
        403,
        "forbidden_host",
        "the host name of the request is neither an address, `localhost` nor given with `--allow-host`",
    ),
    (404, "model_not_found", "a model that is not served here"),
    (
        404,
        "adapter_not_found",
        "a change of an adapter that is not loaded",
    ),
    (404, "not_found", "no such path, or no such stored answer"),
    (405, "method_not_allowed", "the path does not take this method"),
    (408, "request_timeout", "the body did not arrive in time"),
    (
        408,
        "stream_stalled",
        "the client read nothing of a stream for `--write-timeout`; the error is in the stream",
    ),
    (
        409,
        "busy",
        "a running download must end first, or running requests take the room; `Retry-After` says when to try again",
    ),
    (413, "body_too_large", "the body is over `--max-body-bytes`"),
    (
        413,
        "too_many_values",
        "the body's lists and objects have so many items that their parsed form would take too much memory",
    ),
    (
        415,
        "compressed_body",
        "the body has another `Content-Encoding` than `zstd`",
    ),
    (
        429,
        "queue_full",
        "too many requests or prompt tokens wait, or too many large bodies arrive at once; `Retry-After` says when to try again",
    ),
    (
        500,
        "folder_failed",
        "a model was not downloaded or removed: the network, the other server or the disk failed",
    ),
    (
        500,
        "internal_error",
        "an internal failure, not caused by the client",
    ),
    (
        501,
        "not_implemented",
        "a path of Ollama's API that manages models",
    ),
    (
        503,
        "not_ready",
        "the server is loading its model or ending, or its engine has ended",
    ),
    (
        503,
        "model_failed",
        "the requested model could not be loaded; the message says why, and a later request tries again",
    ),
    (
        503,
        "model_too_large",
        "the requested model does not fit into `--memory-budget`; the message has both numbers",
    ),
    (
        504,
        "deadline_exceeded",
        "`--queue-timeout` or `--request-timeout` passed",
    ),
    (
        507,
        "storage_full",
        "the folder of `--session-dir` or its disk has no room for a session, or the disk has none for a model",
    ),
    (
        200,
        "(any of these)",
        "a stream that had begun: its last event is the error, in the form of a body",
    ),
];
