//! Tests of errors of the API: bodies, statuses and texts.

use super::*;
use crate::errors::error_table::DOCUMENTED;

#[test]
fn the_same_cause_has_a_body_in_each_dialect() {
    let error = ApiError::ContextLengthExceeded {
        provided: 9000,
        maximum: 8192,
    };
    assert_eq!(error.status(), 400);
    let message = "the prompt of 9000 tokens is too large: it exceeds the available context size, and this model's maximum \
                   context length is 8192 tokens";
    assert_eq!(
        error.body(Dialect::OpenAi, "r1"),
        json!({"error": {"message": message, "type": "exceed_context_size_error", "param": null, "code": "context_length_exceeded",
            "n_prompt_tokens": 9000, "n_ctx": 8192}})
    );
    let message = "prompt is too long: 9000 tokens > 8192 maximum";
    assert_eq!(
        error.body(Dialect::Anthropic, "r1"),
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}, "request_id": "r1"})
    );
}

#[test]
fn every_error_is_documented_with_its_status() {
    let text = || "x".to_owned();
    let all = [
        ApiError::MalformedJson { reason: text() },
        ApiError::invalid("a", "b"),
        ApiError::UnknownField {
            param: text(),
            near: text(),
        },
        ApiError::UnsupportedField {
            param: text(),
            reason: "y",
        },
        ApiError::UnknownModel {
            model: text(),
            near: text(),
            available: text(),
        },
        ApiError::NoSuchModel {
            model: text(),
            near: text(),
            available: text(),
        },
        ApiError::NoModel { can_pull: true },
        ApiError::ModelFailed {
            model: text(),
            reason: text(),
        },
        ApiError::ModelTooLarge {
            model: text(),
            needed_bytes: 2,
            budget_bytes: 1,
            pinned_bytes: 0,
        },
        ApiError::UnknownAdapter {
            adapter: text(),
            available: text(),
        },
        ApiError::ContextLengthExceeded {
            provided: 2,
            maximum: 1,
        },
        ApiError::Template { reason: text() },
        ApiError::Unauthorized,
        ApiError::ForeignOrigin { origin: text() },
        ApiError::ForeignHost { host: text() },
        ApiError::TooManyValues { limit_bytes: 1 },
        ApiError::NotFound {
            method: text(),
            path: text(),
            near: text(),
        },
        ApiError::NotStored { id: Some(text()) },
        ApiError::MethodNotAllowed {
            method: text(),
            path: text(),
            answered: text(),
        },
        ApiError::NotImplemented {
            path: text(),
            reason: "y",
        },
        ApiError::BodyTooLarge { limit_bytes: 1 },
        ApiError::CompressedBody { encoding: text() },
        ApiError::RequestTimeout { limit_s: 1 },
        ApiError::QueueFull {
            waiting: 1,
            retry_after_s: 1,
        },
        ApiError::QueueTokensFull {
            reason: text(),
            retry_after_s: 1,
        },
        ApiError::Stalled,
        ApiError::DeadlineExceeded,
        ApiError::Busy { reason: "y" },
        ApiError::NotReady { reason: "y" },
        ApiError::ShapeFailed { reason: text() },
        ApiError::StorageFull { reason: text() },
        ApiError::FolderFailed { reason: text() },
        ApiError::Internal { reason: text() },
    ];
    for error in all {
        let is_documented = DOCUMENTED
            .iter()
            .any(|(status, code, _)| (*status, *code) == (error.status(), error.code()));
        assert!(is_documented, "{error:?}");
    }
}

#[test]
fn a_clients_text_is_shown_in_part() {
    let error = ApiError::UnknownField {
        param: "é".repeat(30_000),
        near: String::new(),
    };
    let body = error.body(Dialect::OpenAi, "r1");
    let length = |field: &str| body["error"][field].as_str().expect("text").len();
    assert!(length("message") <= MAX_MESSAGE + 3 && length("param") <= MAX_SHOWN + 3);
}

#[test]
fn a_foreign_host_is_told_the_option_that_allows_it() {
    for (host, end) in [
        ("example.com:8080", "`; start it with `--allow-host example.com`"),
        ("example.com", "`; start it with `--allow-host example.com`"),
        ("a b", "`a b`"),
    ] {
        let error = ApiError::ForeignHost {
            host: host.to_owned(),
        };
        assert!(error.to_string().ends_with(end), "{error}");
    }
}

#[test]
fn a_server_without_models_lists_none() {
    let error = ApiError::NoSuchModel {
        model: "a".to_owned(),
        near: String::new(),
        available: String::new(),
    };
    assert_eq!(error.to_string(), "the model `a` is not served here; no model is");
    let error = ApiError::NoModel { can_pull: true };
    assert_eq!(error.to_string(), "no model is served; `/api/pull` downloads one");
    assert_eq!(error.status(), 404);
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let error = ApiError::QueueFull {
        waiting: 64,
        retry_after_s: 3,
    };
    assert_eq!((error.status(), error.retry_after_s()), (429, Some(3)));
}
