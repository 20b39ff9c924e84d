//! Tokenizers, templates, calls and constraints against other software, and hostile text. One binary, so that the tests link
//! once.

mod call_goldens;
mod chat_template_goldens;
mod constraint_instances;
mod differential;
mod odd_files;
mod pattern_spellings;
mod references;
mod robustness;
mod support {
    //! Vocabularies, words and references that fuzz targets use too.

    pub(crate) mod references;
    pub(crate) mod template_words;
    pub(crate) mod tokenizer_parts;
    pub(crate) mod vocabularies;
}
mod tokenizer_json;
mod vocabularies;
