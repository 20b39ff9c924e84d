//! The field tables of the endpoints, put together from their own fields and those of sampling.

use std::{fmt::Write as _, sync::LazyLock};

use super::{ENDPOINTS, endpoint::Endpoint};
use crate::{
    dialects::{
        anthropic::messages,
        llama_cpp, ollama,
        openai::{chat, completion, embedding, rerank, response},
    },
    errors::error_table::DOCUMENTED,
    requests::{
        constraints::CONSTRAINT_FIELDS,
        fields::{Field, markdown_table},
        foreign::FOREIGN,
        request_table::RequestTable,
        sampling::sampling_fields,
    },
};

/// The fields of an endpoint, and those that all generating endpoints share; its own fields have priority.
fn with_sampling(own: &[Field]) -> Vec<Field> {
    let shared = sampling_fields().chain(CONSTRAINT_FIELDS).chain(FOREIGN);
    let shared = shared.filter(|field| own.iter().all(|own| own.name != field.name));
    own.iter().copied().chain(shared.copied()).collect()
}

/// The fields of an endpoint of llama.cpp; those that others refuse or read otherwise are its own.
fn of_llama_cpp(own: &[Field]) -> Vec<Field> {
    let own: Vec<Field> = own.iter().chain(llama_cpp::FIELDS).copied().collect();
    with_sampling(&own)
}

/// Fields of `/completion`.
pub fn llama_completion() -> &'static [Field] {
    static TABLE: LazyLock<Vec<Field>> = LazyLock::new(|| of_llama_cpp(llama_cpp::PROMPT_FIELDS));
    &TABLE
}

/// Fields of `/infill`.
pub fn llama_infill() -> &'static [Field] {
    static TABLE: LazyLock<Vec<Field>> = LazyLock::new(|| of_llama_cpp(llama_cpp::INFILL_FIELDS));
    &TABLE
}

/// Fields of `/v1/chat/completions`.
pub fn chat() -> &'static [Field] {
    static TABLE: LazyLock<Vec<Field>> = LazyLock::new(|| with_sampling(chat::FIELDS));
    &TABLE
}

/// Fields of `/v1/completions`.
pub fn completion() -> &'static [Field] {
    static TABLE: LazyLock<Vec<Field>> = LazyLock::new(|| with_sampling(completion::FIELDS));
    &TABLE
}

/// Fields of `/v1/responses`.
pub fn response() -> &'static [Field] {
    static TABLE: LazyLock<Vec<Field>> = LazyLock::new(|| with_sampling(response::FIELDS));
    &TABLE
}

/// Fields of `/v1/embeddings`.
pub fn embedding() -> &'static [Field] {
    embedding::FIELDS
}

/// Fields of `/embedding`.
pub fn llama_embedding() -> &'static [Field] {
    embedding::LLAMA_CPP_FIELDS
}

/// Fields of `/v1/rerank`.
pub fn rerank() -> &'static [Field] {
    rerank::FIELDS
}

/// Fields of `/v1/messages`.
pub fn messages() -> &'static [Field] {
    messages::FIELDS
}

/// Fields of `/api/chat`.
pub fn ollama_chat() -> &'static [Field] {
    ollama::chat::FIELDS
}

/// Fields of `/api/generate`.
pub fn ollama_generate() -> &'static [Field] {
    ollama::generate::FIELDS
}

/// Fields of `/api/embed`.
pub fn ollama_embed() -> &'static [Field] {
    ollama::embed::FIELDS
}

/// Requests of `/v1/chat/completions` and the paths below it.
pub(crate) const CHAT: RequestTable = RequestTable::new(chat, &["messages"]);
/// Requests of `/v1/completions` and the path below it.
pub(crate) const COMPLETION: RequestTable = RequestTable::new(completion, &["prompt"]);
/// Requests of `/v1/responses` and the path below it.
pub(crate) const RESPONSE: RequestTable = RequestTable::new(response, &["input"]);
/// Requests of `/v1/embeddings`.
pub(crate) const EMBEDDING: RequestTable = RequestTable::new(embedding, &["input"]);
/// Requests of `/v1/rerank`.
pub(crate) const RERANK: RequestTable = RequestTable::new(rerank, &["query", "documents"]);
/// Requests of `/v1/messages`.
pub(crate) const MESSAGES: RequestTable = RequestTable::new(messages, &["messages", "max_tokens"]);
/// Requests of `/v1/messages/count_tokens`.
pub(crate) const MESSAGES_TO_COUNT: RequestTable = RequestTable::new(messages, &["messages"]);
/// Requests of `/completion`.
pub(crate) const LLAMA_COMPLETION: RequestTable = RequestTable::new(llama_completion, &["prompt"]);
/// Requests of `/infill`.
pub(crate) const LLAMA_INFILL: RequestTable = RequestTable::new(llama_infill, &[]);
/// Requests of `/embedding`.
pub(crate) const LLAMA_EMBEDDING: RequestTable = RequestTable::new(llama_embedding, &[]);
/// Requests of `/slots/{id}`.
pub(crate) const SLOT_FILE: RequestTable =
    RequestTable::new(|| llama_cpp::SLOT_FILE, &[]).noted(" with the actions `save` and `restore`");
/// Requests of `/tokenize`.
pub(crate) const TOKENIZE: RequestTable = RequestTable::new(|| llama_cpp::TOKENIZE, &[]);
/// Requests of `/apply-template`.
pub(crate) const APPLY_TEMPLATE: RequestTable =
    RequestTable::new(|| llama_cpp::APPLY_TEMPLATE, &["messages"]);
/// Requests of `/api/chat`.
pub(crate) const OLLAMA_CHAT: RequestTable =
    RequestTable::new(ollama_chat, &[]).with_inner("options", ollama::options::options);
/// Requests of `/api/generate`.
pub(crate) const OLLAMA_GENERATE: RequestTable =
    RequestTable::new(ollama_generate, &[]).with_inner("options", ollama::options::options);
/// Requests of `/api/embed`.
pub(crate) const OLLAMA_EMBED: RequestTable =
    RequestTable::new(ollama_embed, &["input"]).with_inner("options", ollama::options::options);
/// Requests of `/api/embeddings`.
pub(crate) const OLLAMA_EMBEDDINGS: RequestTable =
    RequestTable::new(|| ollama::embed::OLDER_FIELDS, &["prompt"])
        .with_inner("options", ollama::options::options);

/// All tables as a page of Markdown: `docs/api-fields.md`.
pub fn document() -> String {
    let mut page = String::from(
        "# Request fields and errors\n\nA test keeps this page equal to the tables in `crates/server/src`. A field \
         that is in no table is answered with 400 and its name. A refused field passes if its value asks for \
         the default behaviour (`null`, `[]`, `false`, `\"auto\"`, `\"none\"`, `{\"type\": \"text\"}`). A field \
         that is `null` counts as not given.\n\nLog-probabilities are those of the model as it is loaded: with the default KV \
         cache in f16, keys and values are rounded to half precision, which moves a log-probability by up to 0.07; \
         `--cache-type-k f32 --cache-type-v f32` avoids it.\n",
    );
    let mut written: Vec<&[Field]> = Vec::new();
    let mut write = |title: &str, fields: &'static [Field]| {
        if !written.iter().any(|other| are_same(other, fields)) {
            written.push(fields);
            let _ = write!(page, "\n## {title}\n\n{}", markdown_table(fields));
        }
    };
    for (row, body) in ENDPOINTS.iter().filter_map(|row| Some((row, row.body?))) {
        let fields = body.fields();
        let paths = paths_that(|other| are_same(other.fields(), fields));
        write(&format!("{} {paths}{}", row.verb.name(), body.note), fields);
        if let Some((name, inner)) = body.inner {
            let paths = paths_that(|other| other.inner.is_some());
            write(&format!("`{name}` of {paths}"), inner());
        }
    }
    page.push_str(
        "\n## Errors\n\nOpenAI's endpoints answer `{\"error\": {\"message\", \"type\", \"param\", \"code\"}}`, Anthropic's \
         `{\"type\": \"error\", \"error\": {\"type\", \"message\"}, \"request_id\"}`, Ollama's `{\"error\": \"message\"}`. \
         `/v1/systemone` answers `{\"detail\": [{\"loc\", \"msg\", \"type\"}]}` with 422 where a field is at fault, and else `{\"detail\": \"message\"}` with the status of this table.\n\n| status | code | when |\n|---|---|---|\n",
    );
    for (status, code, when) in DOCUMENTED {
        let _ = writeln!(page, "| {status} | `{code}` | {when} |");
    }
    page
}

/// Whether two tables are the same one.
fn are_same(one: &[Field], other: &[Field]) -> bool {
    let key = |field: &Field| (field.name, field.note);
    one.iter().map(key).eq(other.iter().map(key))
}

/// Lists the paths of the endpoints whose requests are of this kind.
fn paths_that(is_one: impl Fn(&RequestTable) -> bool) -> String {
    let rows = ENDPOINTS
        .iter()
        .filter(|row| row.body.as_ref().is_some_and(&is_one));
    rows.flat_map(Endpoint::paths).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::{
        env, fs,
        io::{Write, stderr},
        path::Path,
    };

    /// `TOKENMILL_UPDATE_DOCS=1 cargo test -p tokenmill-server` rewrites the page.
    #[test]
    fn the_documentation_equals_the_tables() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api-fields.md");
        if env::var_os("TOKENMILL_UPDATE_DOCS").is_some() {
            fs::write(&path, super::document()).expect("the page can be written");
        }
        let Ok(page) = fs::read_to_string(&path) else {
            // Not `eprintln!`, which the test harness shows of failed tests only.
            let _ = writeln!(
                stderr(),
                "skipped: docs/api-fields.md is not part of a packaged crate"
            );
            return;
        };
        assert_eq!(
            page,
            super::document(),
            "run with TOKENMILL_UPDATE_DOCS=1 to rewrite the page"
        );
    }
}
