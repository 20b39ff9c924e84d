//! `GET /`: the web page, embedded in the binary.
//!
//! The content security policy lets it load nothing but itself and connect only to this server. Images are `data:` URLs.

use axum::{
    Extension,
    body::Body,
    extract::State,
    http::{Method, Uri, header},
    response::{IntoResponse, Response},
};

use super::models::not_found;
use crate::{Models, ServerConfig, telemetry::request_id::RequestId};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Path, media type and content of each file.
const FILES: &[(&str, &str, &str)] = &[
    ("style.css", CSS, include_str!("../../web/style.css")),
    ("messages.css", CSS, include_str!("../../web/messages.css")),
    ("main.js", JAVASCRIPT, include_str!("../../web/main.js")),
    ("asking.js", JAVASCRIPT, include_str!("../../web/asking.js")),
    ("chat.js", JAVASCRIPT, include_str!("../../web/chat.js")),
    ("clipboard.js", JAVASCRIPT, include_str!("../../web/clipboard.js")),
    ("composer.js", JAVASCRIPT, include_str!("../../web/composer.js")),
    (
        "composer_files.js",
        JAVASCRIPT,
        include_str!("../../web/composer_files.js"),
    ),
    (
        "conversations.js",
        JAVASCRIPT,
        include_str!("../../web/conversations.js"),
    ),
    ("copies.js", JAVASCRIPT, include_str!("../../web/copies.js")),
    ("database.js", JAVASCRIPT, include_str!("../../web/database.js")),
    ("decide.js", JAVASCRIPT, include_str!("../../web/decide.js")),
    ("drafts.js", JAVASCRIPT, include_str!("../../web/drafts.js")),
    ("engine.js", JAVASCRIPT, include_str!("../../web/engine.js")),
    ("failures.js", JAVASCRIPT, include_str!("../../web/failures.js")),
    (
        "files_menu.js",
        JAVASCRIPT,
        include_str!("../../web/files_menu.js"),
    ),
    ("folds.js", JAVASCRIPT, include_str!("../../web/folds.js")),
    (
        "former_storage.js",
        JAVASCRIPT,
        include_str!("../../web/former_storage.js"),
    ),
    ("highlight.js", JAVASCRIPT, include_str!("../../web/highlight.js")),
    ("history.js", JAVASCRIPT, include_str!("../../web/history.js")),
    (
        "image_store.js",
        JAVASCRIPT,
        include_str!("../../web/image_store.js"),
    ),
    ("images.js", JAVASCRIPT, include_str!("../../web/images.js")),
    ("markdown.js", JAVASCRIPT, include_str!("../../web/markdown.js")),
    (
        "markdown_inline.js",
        JAVASCRIPT,
        include_str!("../../web/markdown_inline.js"),
    ),
    ("math.js", JAVASCRIPT, include_str!("../../web/math.js")),
    (
        "math_symbols.js",
        JAVASCRIPT,
        include_str!("../../web/math_symbols.js"),
    ),
    ("messages.js", JAVASCRIPT, include_str!("../../web/messages.js")),
    ("model.js", JAVASCRIPT, include_str!("../../web/model.js")),
    ("models.js", JAVASCRIPT, include_str!("../../web/models.js")),
    ("scrolling.js", JAVASCRIPT, include_str!("../../web/scrolling.js")),
    ("settings.js", JAVASCRIPT, include_str!("../../web/settings.js")),
    ("sse.js", JAVASCRIPT, include_str!("../../web/sse.js")),
    (
        "system_message.js",
        JAVASCRIPT,
        include_str!("../../web/system_message.js"),
    ),
    (
        "text_files.js",
        JAVASCRIPT,
        include_str!("../../web/text_files.js"),
    ),
    ("transfer.js", JAVASCRIPT, include_str!("../../web/transfer.js")),
    ("turn.js", JAVASCRIPT, include_str!("../../web/turn.js")),
    ("versions.js", JAVASCRIPT, include_str!("../../web/versions.js")),
];
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Text in the page that is replaced by the size limit of a request body.
const LIMIT: &str = "{max_body_bytes}";

/// The page or one of its files. Its paths stand in the table of endpoints.
pub(crate) async fn page(
    State(models): State<Models>,
    request_id: Extension<RequestId>,
    method: Method,
    uri: Uri,
) -> Response {
    match at(models.config(), uri.path()) {
        Some(answer) => answer,
        None => not_found(request_id, method, uri).await,
    }
}

/// Returns the answer to a `GET` of one of the page's paths; `None` for other paths, and where the page is not served.
///
/// It needs no model, so a browser gets the page also while the model loads. The page contains the limit of a request's size, so that it can
/// warn before it sends one. Names are looked up in a table, so no path leads to a file.
pub(crate) fn at(config: &ServerConfig, path: &str) -> Option<Response> {
    if !config.has_page {
        return None;
    }
    if path == "/" {
        let limit = config.max_body_bytes.to_string();
        let page = include_str!("../../web/index.html").replacen(LIMIT, &limit, 1);
        return Some(respond("text/html; charset=utf-8", page));
    }
    let name = path.strip_prefix("/web/")?;
    let (_, media_type, content) = FILES.iter().find(|(own, ..)| *own == name)?;
    Some(respond(media_type, *content))
}

fn respond(media_type: &'static str, content: impl Into<Body>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, media_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, content.into()).into_response()
}
