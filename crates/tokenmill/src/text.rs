//! From text to tokens: tokenizers, templates, and prompts that a program builds itself.

pub use tokenmill_gguf::RegularFile;
pub use tokenmill_sched::Media;
pub use tokenmill_text::DecodeOptions;

pub use crate::{
    json_text::{make_readable_json, readable_json, without_mark},
    model_source::tokenizer_json,
    reply::Prompt,
    reply_reader::ReplyReader,
    text_params::EngineParams,
    words::{ModelWords, utc_now},
};
