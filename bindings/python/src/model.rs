//! A loaded model as a Python object.
//!
//! Each method reads its arguments, starts a request, and waits for it with the interpreter free. Invariant: a model is
//! shared by all threads of the program, and their requests share the steps of one engine.

use std::path::PathBuf;

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyDict, PyString},
};
use serde_json::Value;
use tokenmill::{
    Conversation, Device, LoadOptions, TextParams, ToolChoice, load::Projector, sessions::Session,
    text::DecodeOptions,
};

use crate::{answer::Answer, error, fetch::Fetch, json, params, stream::Stream};

/// A loaded model.
///
/// `path` is a GGUF file, a folder with one, a Hugging Face folder with safetensors, `OWNER/REPOSITORY[:TYPE]` of the Hub, `NAME:TAG` of
/// Ollama's registry, or `demo`, a small model inside the package. What exists as a file or a folder is never taken for a name. A model
/// that is named and not on this machine is downloaded, unless `download` is false; `offline` asks no server. `progress` is called with the
/// bytes that are there and those of all files, some ten times a second.
///
/// `mmproj` is the file of the encoder of images; `False` uses none. Else one next to the model is found, and downloaded with it.
#[pyclass(frozen, module = "tokenmill")]
pub(crate) struct Model(tokenmill::Model);

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (path, *, context=None, sequences=None, device="auto", threads=None, kv_type=None, chat_template=None, draft=None, mmproj=None, download=true, offline=false, progress=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        context: Option<usize>,
        sequences: Option<usize>,
        device: &str,
        threads: Option<usize>,
        kv_type: Option<&str>,
        chat_template: Option<String>,
        draft: Option<PathBuf>,
        mmproj: Option<&Bound<'_, PyAny>>,
        download: bool,
        offline: bool,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut options = LoadOptions {
            n_ctx: context,
            chat_template,
            projector: projector(mmproj)?,
            ..LoadOptions::default()
        };
        options.compute.device = (device.parse()).map_err(|error| value_error("device", &error))?;
        options.compute.n_threads = threads;
        if let Some(sequences) = sequences {
            options.n_seqs = sequences;
        }
        if let Some(kv_type) = kv_type {
            options.kv_type = kv_type.parse().map_err(|error| value_error("kv_type", &error))?;
        }
        // Wrong arguments are told before anything is downloaded.
        let fetch = Fetch {
            download,
            offline,
            progress,
        };
        let on_gpu = matches!(options.compute.device, Device::Cuda { .. });
        let with_projector = options.projector == Projector::Beside && !on_gpu;
        let path = fetch.path(py, path, with_projector, draft.is_none() && !on_gpu)?;
        options.draft = draft
            .map(|draft| fetch.path(py, draft, false, false))
            .transpose()?;
        py.detach(|| options.load(path)).map(Self).map_err(error::load)
    }

    /// The name of the file or folder.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// Where it computes.
    #[getter]
    fn device(&self) -> String {
        self.0.device().to_string()
    }

    /// Tokens of a context.
    #[getter]
    fn n_ctx(&self) -> usize {
        self.0.n_ctx()
    }

    /// Tokens of the vocabulary.
    #[getter]
    fn n_vocab(&self) -> usize {
        self.0.engine().limits().n_vocab
    }

    fn __repr__(&self) -> String {
        format!("Model({:?}, device={:?})", self.name(), self.device())
    }

    /// Continues a text.
    #[pyo3(signature = (prompt, **params))]
    fn complete(&self, py: Python<'_>, prompt: &str, params: Option<&Bound<'_, PyDict>>) -> PyResult<Answer> {
        only(self.stream(py, prompt, params)?.answers(py)?)
    }

    /// Continues a text, piece by piece.
    #[pyo3(signature = (prompt, **params))]
    fn stream(&self, py: Python<'_>, prompt: &str, params: Option<&Bound<'_, PyDict>>) -> PyResult<Stream> {
        let params = params::read(params)?;
        py.detach(|| self.0.stream(prompt, &params))
            .map(Stream::new)
            .map_err(error::request)
    }

    /// Continues many texts side by side; an element is an `Answer`, or the `RequestError` of that text.
    #[pyo3(signature = (prompts, **params))]
    fn batch<'py>(
        &self,
        py: Python<'py>,
        prompts: Vec<String>,
        params: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let params = params::read(params)?;
        each(py, py.detach(|| self.0.batch(&prompts, &params)))
    }

    /// Answers a conversation.
    #[pyo3(signature = (messages, *, tools=None, tool_choice=None, template_variables=None, **params))]
    fn chat(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        tool_choice: Option<&str>,
        template_variables: Option<&Bound<'_, PyAny>>,
        params: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Answer> {
        let stream = self.chat_stream(py, messages, tools, tool_choice, template_variables, params)?;
        only(stream.answers(py)?)
    }

    /// Answers a conversation, piece by piece.
    #[pyo3(signature = (messages, *, tools=None, tool_choice=None, template_variables=None, **params))]
    fn chat_stream(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        tool_choice: Option<&str>,
        template_variables: Option<&Bound<'_, PyAny>>,
        params: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Stream> {
        let conversation = conversation(messages, tools, tool_choice, template_variables)?;
        let params: TextParams = params::read(params)?;
        py.detach(|| self.0.chat_stream(conversation, &params))
            .map(Stream::new)
            .map_err(error::request)
    }

    /// Answers many conversations side by side; an element is an `Answer`, or the `RequestError` of that conversation.
    #[pyo3(signature = (conversations, *, tools=None, tool_choice=None, template_variables=None, **params))]
    fn chat_batch<'py>(
        &self,
        py: Python<'py>,
        conversations: Vec<Bound<'py, PyAny>>,
        tools: Option<&Bound<'py, PyAny>>,
        tool_choice: Option<&str>,
        template_variables: Option<&Bound<'py, PyAny>>,
        params: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let read = |messages| conversation(messages, tools, tool_choice, template_variables);
        let conversations = conversations.iter().map(read).collect::<PyResult<Vec<_>>>()?;
        let params = params::read(params)?;
        each(py, py.detach(|| self.0.chat_batch(&conversations, &params)))
    }

    /// One vector of length 1 for each text: an array of float32, `[len(texts), n_embd]`.
    fn embed<'py>(&self, py: Python<'py>, texts: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let texts: Vec<String> = match texts.cast::<PyString>() {
            Ok(text) => vec![text.to_string()],
            Err(_) => texts.extract()?,
        };
        let rows = py.detach(|| self.0.embed(&texts)).map_err(error::request)?;
        Ok(PyArray2::from_vec2(py, &rows)?)
    }

    /// How well each document answers the query: an array of float32 between 0 and 1, `[len(documents)]`.
    fn rerank<'py>(
        &self,
        py: Python<'py>,
        query: &str,
        documents: Vec<String>,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let scores = py
            .detach(|| self.0.rerank(query, &documents))
            .map_err(error::request)?;
        Ok(PyArray1::from_vec(py, scores))
    }

    /// The logits behind every token of a text or of a list of tokens: an array of float32, `[n_tokens, n_vocab]`.
    fn logits<'py>(
        &self,
        py: Python<'py>,
        prompt: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let tokens = match prompt.cast::<PyString>() {
            Ok(text) => self.0.words().encode_text(&text.to_string(), true),
            Err(_) => prompt.extract()?,
        };
        let values = py
            .detach(|| self.0.engine().forward_batch(&tokens))
            .map_err(error::request)?;
        let n_vocab = values.len() / tokens.len();
        PyArray1::from_vec(py, values).reshape([tokens.len(), n_vocab])
    }

    /// Writes tokens to a file, with what was computed for them, and gives the bytes of the file. The tokens are those of a prompt and
    /// of the answer to it. A file that is there is replaced when the new one is on the disk.
    fn save_session(&self, py: Python<'_>, path: PathBuf, tokens: Vec<u32>) -> PyResult<u64> {
        let session = Session {
            tokens,
            ..Session::default()
        };
        let size = py.detach(|| self.0.save_session(path, &session));
        Ok(size.map_err(error::request)?.n_bytes)
    }

    /// Brings back what was computed for the tokens of a file, and gives the tokens: a prompt that begins so continues from there.
    fn restore_session(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<u32>> {
        let session = py.detach(|| self.0.restore_session(path, 0));
        Ok(session.map_err(error::request)?.tokens)
    }

    /// The tokens of a text. `special` adds what the model puts before a text, such as a token that begins it.
    #[pyo3(signature = (text, *, special=true))]
    fn tokenize(&self, text: &str, special: bool) -> Vec<u32> {
        self.0.words().encode_text(text, special)
    }

    /// The text of tokens, special ones left out.
    fn detokenize(&self, tokens: Vec<u32>) -> PyResult<String> {
        let n_vocab = self.n_vocab();
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= n_vocab) {
            return Err(PyValueError::new_err(format!(
                "token {token} is not one of {n_vocab}"
            )));
        }
        Ok(self
            .0
            .words()
            .tokenizer()
            .decode(&tokens, DecodeOptions::default()))
    }

    /// The text that the model reads for a conversation.
    #[pyo3(signature = (messages, *, tools=None, template_variables=None))]
    fn render_chat(
        &self,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        template_variables: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<String> {
        let conversation = conversation(messages, tools, None, template_variables)?;
        self.0.words().render_chat(&conversation).map_err(error::request)
    }
}

/// Where the encoder of images is.
fn projector(mmproj: Option<&Bound<'_, PyAny>>) -> PyResult<Projector> {
    let Some(mmproj) = mmproj else {
        return Ok(Projector::Beside);
    };
    match mmproj.extract() {
        Ok(true) => Ok(Projector::Beside),
        Ok(false) => Ok(Projector::None),
        Err(_) => mmproj.extract().map(Projector::File),
    }
}

/// The conversation of these arguments.
fn conversation(
    messages: &Bound<'_, PyAny>,
    tools: Option<&Bound<'_, PyAny>>,
    tool_choice: Option<&str>,
    template_variables: Option<&Bound<'_, PyAny>>,
) -> PyResult<Conversation> {
    let Value::Array(messages) = json::from_python("messages", messages)? else {
        return Err(PyTypeError::new_err("messages: must be a list"));
    };
    let mut conversation = Conversation::from_json(messages);
    // Tools that must not be called are not offered.
    if let Some(tools) = tools.filter(|_| tool_choice != Some("none")) {
        conversation = conversation.tools(json::from_python("tools", tools)?);
    }
    conversation.tool_choice = match tool_choice {
        None | Some("auto" | "none") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        Some(name) => ToolChoice::Named(name.to_owned()),
    };
    if let Some(variables) = template_variables {
        let Value::Object(variables) = json::from_python("template_variables", variables)? else {
            return Err(PyTypeError::new_err("template_variables: must be a dict"));
        };
        conversation.variables = variables;
    }
    Ok(conversation)
}

/// Answers and errors of many requests, in their order.
fn each(
    py: Python<'_>,
    answers: Vec<Result<tokenmill::Answer, tokenmill::Error>>,
) -> PyResult<Vec<Bound<'_, PyAny>>> {
    let result = |answer| match answer {
        Ok(answer) => Ok(Bound::new(py, Answer::from(answer))?.into_any()),
        Err(refused) => Ok(error::request(refused).into_value(py).into_bound(py).into_any()),
    };
    answers.into_iter().map(result).collect()
}

/// The answer of a request for one.
fn only(answers: Vec<Answer>) -> PyResult<Answer> {
    (answers.into_iter().next()).ok_or_else(|| error::RequestError::new_err("the request gave no answer"))
}

fn value_error(name: &str, error: &dyn std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("{name}: {error}"))
}
