//! `GET /openapi.json`: the description of the API, made from the table of endpoints.

use std::sync::LazyLock;

use axum::{
    body::Bytes,
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};

use super::{ENDPOINTS, endpoint::Endpoint};
use crate::requests::fields::{Field, Support};

/// Serves the description.
pub(crate) async fn openapi() -> Response {
    // Serialized once, so that answers share its bytes, even those that no client reads.
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, DOCUMENT.clone()).into_response()
}

fn document() -> Value {
    let mut paths = Map::new();
    for row in ENDPOINTS.iter().filter(|row| !row.summary.is_empty()) {
        for path in row.paths() {
            let of_path = paths.entry(path.replace("{*", "{")).or_insert_with(|| json!({}));
            of_path[row.verb.name().to_lowercase()] = operation(row, path);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "tokenmill", "version": env!("CARGO_PKG_VERSION") },
        "security": [{ "key": [] }, {}],
        "paths": paths,
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
            "responses": { "error": {
                "description": "what was wrong",
                "content": { "application/json": { "schema": { "type": "object", "properties": {
                    "error": { "type": "object", "properties": {
                        "message": { "type": "string" },
                        "type": { "type": "string" },
                        "code": { "type": ["string", "null"] },
                        "param": { "type": ["string", "null"] },
                    }},
                }}}},
            }},
        },
    })
}

/// Describes an endpoint at one of its paths.
fn operation(row: &Endpoint, path: &str) -> Value {
    let summary = if path == row.path {
        row.summary.to_owned()
    } else {
        format!("The same as `{}`", row.path)
    };
    let mut operation =
        json!({ "summary": summary, "responses": { "200": { "description": "the answer" } } });
    if let Some(body) = row.body {
        let properties: Map<String, Value> = body
            .fields()
            .iter()
            .map(|field| (field.name.to_owned(), property(field)))
            .collect();
        let schema = json!({
            "type": "object",
            "properties": properties,
            "required": body.required,
            "additionalProperties": false,
        });
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
        operation["responses"]["default"] = json!({ "$ref": "#/components/responses/error" });
    }
    if let Some((_, name)) = path.split_once('{') {
        let name = name.trim_start_matches('*').trim_end_matches('}');
        operation["parameters"] = json!([
            { "name": name, "in": "path", "required": true, "schema": { "type": "string" } }
        ]);
    }
    operation
}

fn property(field: &Field) -> Value {
    let description = match field.support {
        Support::Yes => field.note.to_owned(),
        Support::Label => "accepted; changes nothing about the answer".to_owned(),
        Support::Ignored(why) => format!("ignored: {why}"),
        Support::Refused(why) => format!("refused: {why}"),
        Support::Only { values, why } => format!("only {}: {why}", values.join(", ")),
        Support::AllBut { values, why } => format!("all but {}: {why}", values.join(", ")),
    };
    json!({ "description": description, "deprecated": !matches!(field.support, Support::Yes | Support::Label | Support::Ignored(_)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_names_every_field_of_every_endpoint() {
        let document = document();
        let described = ENDPOINTS.iter().filter(|row| !row.summary.is_empty());
        for (row, body) in described.filter_map(|row| Some((row, row.body?))) {
            let (path, fields, required) = (row.path, body.fields(), body.required);
            let schema =
                &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
            let properties = schema["properties"].as_object().expect("properties");
            assert_eq!(
                properties.len(),
                fields.len(),
                "a field of {path} stands in its table twice"
            );
            assert!(
                required.iter().all(|name| properties.contains_key(*name)),
                "{path}"
            );
        }
    }
}
