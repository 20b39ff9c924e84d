//! The field tables of the endpoints, put together from their own fields and those of sampling.

use std::{fmt::Write as _, sync::LazyLock};

use crate::{
    dialects::{
        anthropic::messages,
        llama_cpp,
        llama_cpp::{APPLY_TEMPLATE, DETOKENIZE, TOKENIZE},
        ollama,
        openai::{chat, completion, embedding, rerank, response},
    },
    errors::error_table::DOCUMENTED,
    requests::{
        constraints::CONSTRAINT_FIELDS,
        fields::{Field, markdown_table},
        foreign::FOREIGN,
        sampling::sampling_fields,
    },
};

/// The fields of an endpoint, and those that all endpoints which generate share; what it reads itself goes before those.
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

/// All tables as a page of Markdown: `docs/api-fields.md`.
pub fn document() -> String {
    let mut page = String::from(
        "# Request fields and errors\n\nMade from the tables in `crates/server/src`; a test keeps this page equal to them. A field \
         that stands in no table is answered with 400 and its name. A refused field passes where its value asks for \
         what happens anyway (`null`, `[]`, `false`, `\"auto\"`, `\"none\"`, `{\"type\": \"text\"}`). A field \
         that is `null` counts as not given.\n\nLog-probabilities are those of the model as it is loaded: with the default KV \
         cache in f16, keys and values are rounded to half precision, which moves a log-probability by up to 0.07; \
         `--cache-type-k f32 --cache-type-v f32` avoids it.\n",
    );
    for (title, fields) in [
        (
            "POST /v1/chat/completions, /v1/chat/completions/render, /v1/chat/completions/input_tokens",
            chat(),
        ),
        ("POST /v1/completions, /v1/completions/render", completion()),
        ("POST /v1/embeddings", embedding()),
        ("POST /v1/rerank, /v2/rerank, /v1/reranking", rerank()),
        ("POST /v1/responses, /v1/responses/input_tokens", response()),
        ("POST /v1/messages, /v1/messages/count_tokens", messages()),
        ("POST /completion", llama_completion()),
        ("POST /infill", llama_infill()),
        ("POST /embedding", llama_embedding()),
        (
            "POST /slots/{id} with the actions `save` and `restore`",
            llama_cpp::SLOT_FILE,
        ),
        (
            "POST /models/load, /models/unload, where there are several models",
            llama_cpp::MANAGE,
        ),
        ("POST /tokenize", TOKENIZE),
        ("POST /detokenize", DETOKENIZE),
        ("POST /apply-template", APPLY_TEMPLATE),
        ("POST /api/chat", ollama_chat()),
        ("POST /api/generate", ollama_generate()),
        (
            "`options` of /api/chat, /api/generate, /api/embed",
            ollama::options::options(),
        ),
        ("POST /api/embed", ollama_embed()),
        ("POST /api/embeddings", ollama::embed::OLDER_FIELDS),
        ("POST /api/show", ollama::embed::SHOW_FIELDS),
        ("POST /api/pull", ollama::embed::PULL_FIELDS),
        ("DELETE /api/delete", ollama::embed::DELETE_FIELDS),
    ] {
        page.push_str("\n## ");
        page.push_str(title);
        page.push_str("\n\n");
        page.push_str(&markdown_table(fields));
    }
    page.push_str(
        "\n## Errors\n\nOpenAI's endpoints answer `{\"error\": {\"message\", \"type\", \"param\", \"code\"}}`, Anthropic's \
         `{\"type\": \"error\", \"error\": {\"type\", \"message\"}, \"request_id\"}`, Ollama's `{\"error\": \"message\"}`.\n\n| status | code | when |\n|---|---|---|\n",
    );
    for (status, code, when) in DOCUMENTED {
        let _ = writeln!(page, "| {status} | `{code}` | {when} |");
    }
    page
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
