//! `POST /v1/rerank`: how well documents answer a query, in the form of Jina's and Cohere's APIs.

use serde::Deserialize;

use crate::{
    ApiError,
    requests::fields::{Field, label, only, refused, yes},
};

/// The endpoint's fields.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes("query", "the query that the documents are ranked by"),
    yes("documents", "texts, or objects with a `text`"),
    yes(
        "texts",
        "the documents under TEI's name; the answer is then a list of `index` and `score`, as TEI's is",
    ),
    yes("return_text", "with `texts`: whether the answer repeats them"),
    only("raw_scores", &["false"], "scores are the model's own"),
    only("truncate", &["false"], "documents are not cut"),
    yes("top_n", "how many of the best are listed; all by default"),
    yes(
        "return_documents",
        "whether the texts come back with their scores",
    ),
    yes(
        "instruction",
        "the purpose of the query, for rerankers with a place for it in their prompt",
    ),
    label("user"),
    refused(
        "max_tokens_per_doc",
        "documents are not cut; a pair longer than the context is an error",
    ),
];

/// A request to rank documents.
#[derive(Clone, Debug, Deserialize)]
pub struct RerankRequest {
    /// Model name.
    pub model: Option<String>,
    /// Query that the documents are to answer.
    pub query: String,
    documents: Option<Vec<Document>>,
    texts: Option<Vec<Document>>,
    /// Whether the answer repeats the texts, in TEI's form.
    pub return_text: Option<bool>,
    /// Number of best documents in the answer.
    pub top_n: Option<usize>,
    /// Whether the texts come back.
    pub return_documents: Option<bool>,
    /// Instruction for the query.
    pub instruction: Option<String>,
}

impl RerankRequest {
    /// Returns the documents, and whether the answer has TEI's form.
    ///
    /// # Errors
    /// Fails if the request has neither or both of the two names for them.
    pub fn documents(&self) -> Result<(&[Document], bool), ApiError> {
        match (&self.documents, &self.texts) {
            (Some(documents), None) => Ok((documents, false)),
            (None, Some(texts)) => Ok((texts, true)),
            (None, None) => Err(ApiError::invalid("documents", "this field is required")),
            (Some(_), Some(_)) => Err(ApiError::invalid("texts", "contradicts `documents`")),
        }
    }
}

/// A document of a request.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Document {
    /// Its text.
    Text(String),
    /// An object with its text.
    Object {
        /// Its text.
        text: String,
    },
}

impl Document {
    /// Its text.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}
