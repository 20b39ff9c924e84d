//! A loaded model as a Python object.
//!
//! Each method reads its arguments, starts a request, and waits for it with the interpreter free. Invariant: a model is
//! shared by all threads of the program, and their requests share the steps of one engine.

use std::{
    path::PathBuf,
    sync::{PoisonError, RwLock},
    time::Duration,
};

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyDict, PyString, PyTuple},
};
use serde_json::Value;
use tokenmill::{
    Conversation, Device, LoadOptions, TextParams, ToolChoice,
    adapters::AdapterSource,
    decide::{DecideParams, SystemOneQuestions, state_of},
    gpu::has_gpu,
    load::{Compute, Projector},
    placement::DeviceLayers,
    sessions::Session,
    text::DecodeOptions,
};

use crate::{
    adapters, answer::Answer, decision::Decision, error, fetch::Fetch, json, params, stream::Stream,
};

/// A loaded model.
///
/// `path` is a GGUF file, a folder with one, a Hugging Face folder with safetensors, `OWNER/REPOSITORY[:TYPE]` of the Hub, `NAME:TAG` of
/// Ollama's registry, or `demo`, a small model inside the package. An existing file or folder is never taken
/// for a name. A model
/// that is named and not on this machine is downloaded, unless `download` is false; `offline` asks no server. `progress` is called with the
/// bytes that are there and those of all files, some ten times a second.
///
/// `mmproj` is the file of the image encoder; `False` uses none. Else one next to the model is found, and downloaded with it.
///
/// `gpu_layers` is how many layers the GPU computes: a number, `"all"` or `"auto"`; 0 computes all on the CPU. Without a GPU the CPU does.
///
/// `lora` is an adapter for all requests, a GGUF file or a folder of PEFT's; or a dict of names and adapters, `{"poet": "poet.gguf"}` or
/// `{"poet": ("poet.gguf", 0.5)}`, of which a request takes one with `lora="poet"`.
///
/// A model is closed by `close()`, at the end of a `with` block, and with its last reference.
#[pyclass(frozen, module = "tokenmill")]
pub(crate) struct Model {
    /// `None` once it is closed.
    handle: RwLock<Option<tokenmill::Model>>,
    /// The adapter of requests that name none.
    adapter: Option<String>,
}

impl Model {
    /// A handle to the model, which keeps it loaded as long as a call takes.
    fn open(&self) -> PyResult<tokenmill::Model> {
        let handle = self.handle.read().unwrap_or_else(PoisonError::into_inner);
        handle
            .clone()
            .ok_or_else(|| error::RequestError::new_err("the model is closed"))
    }

    /// The keyword arguments of a request.
    fn params(&self, arguments: Option<&Bound<'_, PyDict>>) -> PyResult<TextParams> {
        params::read(arguments, self.adapter.as_deref())
    }
}

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (path, *, context=None, sequences=None, device="auto", threads=None, kv_type=None, chat_template=None, draft=None, mmproj=None, gpu_layers=None, lora=None, download=true, offline=false, progress=None))]
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
        gpu_layers: Option<&Bound<'_, PyAny>>,
        lora: Option<&Bound<'_, PyAny>>,
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
        if let Some(layers) = gpu_layers {
            place(&mut options.compute, layers)?;
        }
        let adapter = adapters::read(lora, &mut options)?;
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
        let model = py.detach(|| options.load(path)).map_err(error::load)?;
        Ok(Self {
            handle: RwLock::new(Some(model)),
            adapter,
        })
    }

    /// The name of the file or folder.
    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.open()?.name().to_owned())
    }

    /// Where it computes.
    #[getter]
    fn device(&self) -> PyResult<String> {
        Ok(self.open()?.device().to_string())
    }

    /// Tokens of a context.
    #[getter]
    fn n_ctx(&self) -> PyResult<usize> {
        Ok(self.open()?.n_ctx())
    }

    /// Tokens of the vocabulary.
    #[getter]
    fn n_vocab(&self) -> PyResult<usize> {
        Ok(self.open()?.engine().limits().n_vocab)
    }

    /// The names of its adapters.
    #[getter]
    fn loras(&self) -> PyResult<Vec<String>> {
        let adapters = self.open()?.adapters();
        Ok(adapters.into_iter().map(|adapter| adapter.name).collect())
    }

    fn __repr__(&self) -> String {
        match self.open() {
            Ok(model) => format!(
                "Model({:?}, device={:?})",
                model.name(),
                model.device().to_string()
            ),
            Err(_) => "Model(closed)".to_owned(),
        }
    }

    /// Ends the model and frees its memory, once the calls that other threads wait for have returned; streams that are not read to their
    /// end fail. A second call does nothing.
    fn close(&self, py: Python<'_>) {
        let handle = self.handle.write().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(handle));
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    /// Loads an adapter, which requests name from then on: `lora=name`.
    #[pyo3(signature = (name, path, *, scale=1.0))]
    fn load_lora(&self, py: Python<'_>, name: String, path: PathBuf, scale: f32) -> PyResult<()> {
        let source = AdapterSource {
            name,
            path,
            strength: scale,
        };
        let model = self.open()?;
        py.detach(|| model.load_adapter(&source)).map_err(error::load)?;
        Ok(())
    }

    /// Takes an adapter's name away; its memory is free once the requests that have it have ended.
    fn unload_lora(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let model = self.open()?;
        py.detach(|| model.unload_adapter(name)).map_err(error::request)
    }

    /// Continues a text.
    #[pyo3(signature = (prompt, **params))]
    fn complete(&self, py: Python<'_>, prompt: &str, params: Option<&Bound<'_, PyDict>>) -> PyResult<Answer> {
        only(self.stream(py, prompt, params)?.answers(py)?)
    }

    /// Continues a text, piece by piece.
    #[pyo3(signature = (prompt, **params))]
    fn stream(&self, py: Python<'_>, prompt: &str, params: Option<&Bound<'_, PyDict>>) -> PyResult<Stream> {
        let (model, params) = (self.open()?, self.params(params)?);
        py.detach(|| model.stream(prompt, &params))
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
        let (model, params) = (self.open()?, self.params(params)?);
        each(py, py.detach(|| model.batch(&prompts, &params)))
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
        let (model, params) = (self.open()?, self.params(params)?);
        py.detach(|| model.chat_stream(conversation, &params))
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
        let (model, params) = (self.open()?, self.params(params)?);
        each(py, py.detach(|| model.chat_batch(&conversations, &params)))
    }

    /// One vector of length 1 for each text: an array of float32, `[len(texts), n_embd]`.
    fn embed<'py>(&self, py: Python<'py>, texts: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let texts: Vec<String> = match texts.cast::<PyString>() {
            Ok(text) => vec![text.to_string()],
            Err(_) => texts.extract()?,
        };
        let model = self.open()?;
        let rows = py.detach(|| model.embed(&texts)).map_err(error::request)?;
        Ok(PyArray2::from_vec2(py, &rows)?)
    }

    /// How well each document answers the query: an array of float32 between 0 and 1, `[len(documents)]`.
    fn rerank<'py>(
        &self,
        py: Python<'py>,
        query: &str,
        documents: Vec<String>,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let model = self.open()?;
        let scores = py
            .detach(|| model.rerank(query, &documents))
            .map_err(error::request)?;
        Ok(PyArray1::from_vec(py, scores))
    }

    /// Answers typed questions about a state with probabilities: a dict of a `Decision` for each question.
    ///
    /// `state` is a text, or a dict or a list, which the model reads as JSON; chat messages may have images. `questions` has names and
    /// questions as `/v1/systemone` takes them. `permutations` asks each question in so many orders of its options and averages.
    /// `temperature` divides the logits of the labels, or the scores of a head: above 1 the probabilities come closer to each other. After
    /// `timeout` seconds the call fails with `RequestError`.
    #[pyo3(signature = (state, questions, *, permutations=1, temperature=1.0, timeout=None))]
    fn decide<'py>(
        &self,
        py: Python<'py>,
        state: &Bound<'py, PyAny>,
        questions: &Bound<'py, PyAny>,
        permutations: usize,
        temperature: f64,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let state = state_of(&json::from_python("state", state)?).map_err(error::request)?;
        let Value::Object(questions) = json::from_python("questions", questions)? else {
            return Err(PyTypeError::new_err("questions: must be a dict"));
        };
        let asked = SystemOneQuestions::parse(&questions).map_err(error::request)?;
        let deadline = timeout.map(Duration::try_from_secs_f64).transpose();
        let params = DecideParams {
            permutations,
            temperature,
            names: asked.names().to_vec(),
            deadline: deadline.map_err(|error| value_error("timeout", &error))?,
            ..DecideParams::default()
        };
        let model = self.open()?;
        let decisions = py.detach(|| {
            let answers = model.start_deciding(state, asked.questions(), &params)?;
            answers.collect::<Result<Vec<_>, tokenmill::Error>>()
        });
        let answers = PyDict::new(py);
        let asked = asked.names().iter().zip(asked.questions());
        for ((name, question), decision) in asked.zip(decisions.map_err(error::request)?) {
            answers.set_item(name, Bound::new(py, Decision::new(question, decision))?)?;
        }
        Ok(answers)
    }

    /// The logits behind every token of a text or of a list of tokens: an array of float32, `[n_tokens, n_vocab]`.
    fn logits<'py>(
        &self,
        py: Python<'py>,
        prompt: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let model = self.open()?;
        let tokens = match prompt.cast::<PyString>() {
            Ok(text) => model.words().encode_text(&text.to_string(), true),
            Err(_) => prompt.extract()?,
        };
        let values = py
            .detach(|| model.engine().forward_batch(&tokens))
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
        let model = self.open()?;
        let size = py.detach(|| model.save_session(path, &session));
        Ok(size.map_err(error::request)?.n_bytes)
    }

    /// Brings back what was computed for the tokens of a file, and gives the tokens: a prompt that begins so continues from there.
    fn restore_session(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<u32>> {
        let model = self.open()?;
        let session = py.detach(|| model.restore_session(path, 0));
        Ok(session.map_err(error::request)?.tokens)
    }

    /// The tokens of a text. `special` adds what the model puts before a text, such as a token that begins it.
    #[pyo3(signature = (text, *, special=true))]
    fn tokenize(&self, text: &str, special: bool) -> PyResult<Vec<u32>> {
        Ok(self.open()?.words().encode_text(text, special))
    }

    /// The text of tokens, special ones left out.
    fn detokenize(&self, tokens: Vec<u32>) -> PyResult<String> {
        let model = self.open()?;
        let n_vocab = model.engine().limits().n_vocab;
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= n_vocab) {
            return Err(PyValueError::new_err(format!(
                "token {token} is not one of {n_vocab}"
            )));
        }
        Ok(model
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
        let model = self.open()?;
        model.words().render_chat(&conversation).map_err(error::request)
    }
}

/// Sets how many layers the GPU computes. A number above 0 asks for a GPU, as far as the machine has one.
fn place(compute: &mut Compute, layers: &Bound<'_, PyAny>) -> PyResult<()> {
    let refused = || PyValueError::new_err("gpu_layers: say a number, \"all\" or \"auto\"");
    let layers = match layers.extract::<i64>() {
        // llama.cpp's number for all.
        Ok(-1) => DeviceLayers::All,
        Ok(n) => DeviceLayers::Last(usize::try_from(n).map_err(|_| refused())?),
        Err(_) => match layers.extract::<String>()?.as_str() {
            "all" => DeviceLayers::All,
            "auto" => DeviceLayers::Auto,
            _ => return Err(refused()),
        },
    };
    let contradicts = |device: &str| {
        Err(PyValueError::new_err(format!(
            "gpu_layers: contradicts the device, {device}"
        )))
    };
    match (layers, compute.device) {
        (DeviceLayers::Last(0), Device::Cuda { .. }) => return contradicts("a GPU"),
        (DeviceLayers::Last(0), Device::Cpu | Device::Auto) => compute.device = Device::Cpu,
        (_, Device::Cpu) => return contradicts("the CPU"),
        (DeviceLayers::Auto, Device::Auto) | (_, Device::Cuda { .. }) => compute.placement.layers = layers,
        (_, Device::Auto) if has_gpu() => {
            compute.device = Device::Cuda { ordinal: 0 };
            compute.placement.layers = layers;
        }
        (_, Device::Auto) => compute.device = Device::Cpu,
    }
    Ok(())
}

/// Where the image encoder is.
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
    let mut conversation = match messages.cast::<PyString>() {
        Ok(question) => Conversation::from(question.to_string()),
        Err(_) => match json::from_python("messages", messages)? {
            Value::Array(messages) => Conversation::from_json(messages),
            _ => return Err(PyTypeError::new_err("messages: must be a list or a text")),
        },
    };
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
