//! Images of requests: from each API's form to a part of a message.
//!
//! Four APIs have them. Invariant: nothing is opened here and no other machine is contacted for a client: an
//! image's bytes come with its request, or its file is read [later](ImageFile); other URLs are refused.

use serde_json::{Map, Value, json};
use tokenmill::images::image_of_url;

use crate::ApiError;

/// An image by its URL, as a part of a message. One that is a file is not read yet.
///
/// # Errors
/// A URL that is not read, or whose data is broken; `path` is where it stands.
pub(crate) fn of_url(path: &str, url: &str) -> Result<Value, ApiError> {
    if is_file_url(url) {
        return Ok(json!({ "type": "image_url", "image_url": { "url": url }, PARAM: path }));
    }
    match image_of_url(url) {
        Ok(bytes) if bytes.is_empty() => Err(ApiError::invalid(path, "the image is empty")),
        Ok(_) => Ok(json!({ "type": "image_url", "image_url": { "url": url } })),
        Err(reason) => Err(ApiError::invalid(path, reason)),
    }
}

const SCHEME: &str = "file://";

/// Where the part of a file has the field that names it.
const PARAM: &str = "param";

/// Whether a URL is that of a file.
fn is_file_url(url: &str) -> bool {
    url.get(..SCHEME.len())
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
}

/// An image whose file is not read yet. One that is not read at all is refused with the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageFile {
    /// The field that names it.
    pub(crate) param: String,
    /// Behind the scheme.
    pub(crate) path: String,
}

impl ImageFile {
    /// The file of a part; `None` for any other.
    pub(crate) fn of(part: &Value) -> Option<Self> {
        let param = part.get(PARAM)?.as_str()?;
        let url = part.pointer("/image_url/url")?.as_str()?;
        is_file_url(url).then(|| Self {
            param: param.to_owned(),
            path: url[SCHEME.len()..].to_owned(),
        })
    }
}

/// An image by its bytes in base64, as a part of a message.
///
/// # Errors
/// Returns the errors of [`of_url`].
pub(crate) fn of_base64(path: &str, base64: &str) -> Result<Value, ApiError> {
    let has_scheme = base64
        .get(..5)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
    if has_scheme {
        return Err(ApiError::invalid(
            path,
            "expected base64 alone: leave out the `data:…;base64,` before it",
        ));
    }
    of_url(path, &format!("data:;base64,{base64}"))
}

/// The fields of an image's part in OpenAI's APIs, taken out of the part's other fields: `image_url` as a URL or an object with one,
/// and `detail`, which changes nothing here.
///
/// # Errors
/// Returns the errors of [`of_url`], and refuses an image that was uploaded before.
pub(crate) fn of_openai(path: &str, others: &mut Map<String, Value>) -> Result<Value, ApiError> {
    others.remove("detail");
    if others.get("file_id").is_some_and(|id| !id.is_null()) {
        return Err(ApiError::UnsupportedField {
            param: format!("{path}.file_id"),
            reason: "no files are stored; send the image as a data: URL",
        });
    }
    others.remove("file_id");
    let path = format!("{path}.image_url");
    match others.remove("image_url") {
        Some(Value::String(url)) => of_url(&path, &url),
        Some(Value::Object(object)) => match object.get("url").and_then(Value::as_str) {
            Some(url) => of_url(&format!("{path}.url"), url),
            None => Err(ApiError::invalid(format!("{path}.url"), "this field is required")),
        },
        _ => Err(ApiError::invalid(path, "expected a URL, or an object with one")),
    }
}

/// The `source` of an image's block in Anthropic's API.
///
/// # Errors
/// Returns the errors of [`of_url`], and refuses other kinds of sources.
pub(crate) fn of_anthropic(path: &str, source: Option<&Value>) -> Result<Value, ApiError> {
    let path = format!("{path}.source");
    let source = source.ok_or_else(|| ApiError::invalid(&path, "this field is required"))?;
    let text = |field: &str| {
        let text = source[field].as_str();
        text.ok_or_else(|| ApiError::invalid(format!("{path}.{field}"), "expected a string"))
    };
    match text("type")? {
        "base64" => of_base64(&format!("{path}.data"), text("data")?),
        "url" => of_url(&format!("{path}.url"), text("url")?),
        _ => Err(ApiError::invalid(
            format!("{path}.type"),
            "expected `base64` or `url`",
        )),
    }
}

/// Appends a text on a line of its own.
pub(crate) fn push_line(joined: &mut String, text: &str) {
    if !joined.is_empty() {
        joined.push('\n');
    }
    joined.push_str(text);
}

/// Text and images of a message, in their order.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) text: String,
    items: Vec<Value>,
    has_images: bool,
}

impl Parts {
    /// Inserts a text before all others, on the first line.
    pub(crate) fn begin_with(&mut self, text: &str) {
        self.text.insert_str(0, text);
        match self.items.first_mut().and_then(|part| part.get_mut("text")) {
            Some(Value::String(first)) => first.insert_str(0, text),
            _ => self.items.insert(0, json!({ "type": "text", "text": text })),
        }
    }

    /// Adds a text on a line of its own. Clients send a task, a file and its surroundings as parts, whose words must not run together.
    pub(crate) fn push_text(&mut self, text: &str) {
        let last = self.items.last_mut().and_then(|part| part.get_mut("text"));
        if let Some(Value::String(before)) = last {
            push_line(&mut self.text, text);
            push_line(before, text);
        } else {
            self.text.push_str(text);
            self.items.push(json!({ "type": "text", "text": text }));
        }
    }

    pub(crate) fn push_image(&mut self, image: Value) {
        self.items.push(image);
        self.has_images = true;
    }

    /// The text, and all parts where there are images among them.
    pub(crate) fn finish(self) -> (String, Vec<Value>) {
        let parts = if self.has_images { self.items } else { Vec::new() };
        (self.text, parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "data:image/png;base64,aGk=";

    fn object(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(object) => object,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn every_api_has_its_form_of_an_image() {
        let expected = json!({ "type": "image_url", "image_url": { "url": URL } });
        for form in [
            json!({ "image_url": { "url": URL, "detail": "low" } }),
            json!({ "image_url": URL, "detail": "auto", "file_id": null }),
        ] {
            let mut others = object(form);
            assert_eq!(of_openai("p", &mut others).unwrap(), expected);
            assert!(others.is_empty());
        }
        let source = json!({ "type": "base64", "media_type": "image/png", "data": "aGk=" });
        let of_block = of_anthropic("p", Some(&source)).unwrap();
        assert_eq!(of_block["image_url"]["url"], "data:;base64,aGk=");
        let source = json!({ "type": "url", "url": URL });
        assert_eq!(of_anthropic("p", Some(&source)).unwrap(), expected);
    }

    #[test]
    fn a_file_keeps_the_field_that_names_it() {
        for (url, path) in [
            ("file://a.png", Some("a.png")),
            ("FILE:///a/b.png", Some("/a/b.png")),
            ("file://", Some("")),
            (URL, None),
        ] {
            let part = of_url("p", url).unwrap();
            let file = path.map(|path| ImageFile {
                param: "p".to_owned(),
                path: path.to_owned(),
            });
            assert_eq!(ImageFile::of(&part), file, "{url}");
        }
    }

    #[test]
    fn what_is_no_image_in_the_request_is_refused_by_path() {
        let openai = |form: Value| of_openai("p", &mut object(form)).unwrap_err();
        for (form, param) in [
            (json!({}), "p.image_url"),
            (json!({ "image_url": {} }), "p.image_url.url"),
            (
                json!({ "image_url": { "url": "http://169.254.169.254/" } }),
                "p.image_url.url",
            ),
            (json!({ "image_url": "file:a.png" }), "p.image_url"),
            (json!({ "image_url": "data:;base64,%%" }), "p.image_url"),
            (json!({ "image_url": "data:;base64," }), "p.image_url"),
            (json!({ "file_id": "f" }), "p.file_id"),
        ] {
            let error = openai(form);
            assert_eq!((error.param(), error.status()), (Some(param), 400), "{error}");
        }
        for (source, param) in [
            (json!({}), "p.source.type"),
            (json!({ "type": "file", "file_id": "f" }), "p.source.type"),
            (json!({ "type": "base64" }), "p.source.data"),
            (json!({ "type": "base64", "data": "*" }), "p.source.data"),
            (json!({ "type": "base64", "data": URL }), "p.source.data"),
            (
                json!({ "type": "url", "url": "https://example.org" }),
                "p.source.url",
            ),
        ] {
            let error = of_anthropic("p", Some(&source)).unwrap_err();
            assert_eq!(error.param(), Some(param), "{error}");
        }
        assert_eq!(of_anthropic("p", None).unwrap_err().param(), Some("p.source"));
    }

    #[test]
    fn parts_keep_their_order() {
        let mut parts = Parts::default();
        parts.push_text("a");
        parts.push_text("b");
        parts.push_image(json!(1));
        parts.push_text("c");
        let (text, parts) = parts.finish();
        assert_eq!(text, "a\nbc");
        assert_eq!(parts[0]["text"], "a\nb");
        assert_eq!((&parts[1], &parts[2]["text"]), (&json!(1), &json!("c")));
        let mut plain = Parts::default();
        plain.push_text("a");
        assert_eq!(plain.finish(), ("a".to_owned(), Vec::new()));
    }
}
