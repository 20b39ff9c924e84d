//! [`Error`]: the errors of opening, loading and using a model.
//!
//! One enum for the whole crate. Invariant: the fields of an error name the cause; errors of the layers below
//! are kept unchanged.

use std::{io, path::PathBuf};

use tokenmill_backend::{BackendError, MemoryPlan, StepError};
use tokenmill_convert::{ConvertError, Preset};
use tokenmill_gguf::GgufError;
use tokenmill_image::ImageError;
use tokenmill_model::{LoadError, VisionError};
use tokenmill_placed::Bandwidths;
use tokenmill_sched::EngineError;
use tokenmill_text::{
    TokenizerError, calls::CallFormError, constraint::ConstraintError, template::TemplateError,
};

use crate::{
    decide_error::DecideError,
    error_text::{mtp_text, projector_text, what_fits, with_source},
    memory_limit::MemoryLimit,
    memory_text::{plan_text, size},
    session_error::SessionError,
};

/// Why a model could not be opened, loaded or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A folder that holds no model.
    #[error("folder {} holds neither a .gguf file nor a config.json", folder.display())]
    NoModel {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder whose weights are PyTorch files, which are programs and are not read.
    #[error("folder {} holds its weights as PyTorch files only", folder.display())]
    OnlyPickles {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder that holds several models.
    #[error("folder {} holds several models", folder.display())]
    SeveralModels {
        /// The folder.
        folder: PathBuf,
        /// Their file names.
        names: Vec<String>,
    },
    /// A folder without a tokenizer.
    #[error("folder {} holds neither a tokenizer.json nor a tokenizer.model", folder.display())]
    NoTokenizer {
        /// The folder.
        folder: PathBuf,
    },
    /// A type of file that image encoders do not have.
    #[error("an image encoder cannot be written as {out}; its types are auto, f32, f16, bf16 and q8_0")]
    EncoderType {
        /// The type.
        out: String,
    },
    /// The built-in model was requested, and this build has none.
    #[error("the built-in model is not part of this build; enable the feature `demo`")]
    NoDemo,
    /// The model is a name, and this build downloads no models.
    #[error(
        "there is no file or folder `{name}` here; the feature `hub` of the crate tokenmill downloads models by name"
    )]
    NeedsHub {
        /// The name.
        name: String,
    },
    /// A model cannot be found by its name, or cannot be downloaded.
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Hub(#[from] tokenmill_hub::HubError),
    /// A file or folder that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A folder that cannot be made.
    #[error("cannot make the folder {}: {source}", path.display())]
    MakeFolder {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that cannot be written.
    #[error("cannot write to {}: {source}", path.display())]
    Write {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A folder for prompts or sessions is in use by another process or by another part of this one.
    #[error("{} is in use; only one process at a time can keep prompts or sessions in a folder", path.display())]
    FolderInUse {
        /// Its path.
        path: PathBuf,
    },
    /// A configuration file that is not JSON.
    #[error("{} is not JSON: {source}", path.display())]
    NotJson {
        /// Its path.
        path: PathBuf,
        /// Where it goes wrong.
        source: serde_json::Error,
    },
    /// A chat template that is not text.
    #[error("{} is not UTF-8 text", path.display())]
    NotUtf8 {
        /// Its path.
        path: PathBuf,
    },
    /// A GGUF file that cannot be used.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The vocabulary of a model cannot be used.
    #[error("{}: its tokenizer cannot be used: {}", path.display(), with_source(source))]
    Tokenizer {
        /// The model, or its `tokenizer.json`.
        path: PathBuf,
        /// Why.
        source: TokenizerError,
    },
    /// A file is to be quantized while it loads.
    #[error(
        "only the weights of a folder are quantized while they load; `tokenmill quantize` makes a smaller file of a GGUF file"
    )]
    QuantizesFile,
    /// A preset of few bits, while a model loads.
    #[error(
        "{preset} needs an importance matrix, and none is used while a model loads; take for example Q4_K_M or Q8_0"
    )]
    NeedsImportance {
        /// The preset.
        preset: Preset,
    },
    /// Types cannot be chosen for a model's tensors.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// A vocabulary wider than the network.
    #[error("the tokenizer has {n_tokens} tokens, but the network only {n_rows}")]
    VocabularyTooWide {
        /// Tokens of the vocabulary.
        n_tokens: usize,
        /// Rows of the network's output.
        n_rows: usize,
    },
    /// The network could not be opened or loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The system had no memory left during a load on the CPU.
    #[error("the system has too little memory for the load, which takes {}{}", plan_text(plan, *n_ctx), mtp_text(*mtp_bytes))]
    LoadOutOfMemory {
        /// Memory plan of the network.
        plan: Box<MemoryPlan>,
        /// Bytes of the MTP layer next to it; 0 without one.
        mtp_bytes: usize,
        /// Tokens of a context.
        n_ctx: usize,
        /// Why.
        source: Box<LoadError>,
    },
    /// The GPU that was requested cannot be used, or not for this model.
    #[error("the GPU cannot be used: {0}")]
    Gpu(#[source] BackendError),
    /// Fewer GPUs than were to compute the model together.
    #[error("{n_gpus} GPUs from GPU {first} on were requested, but the driver shows {n_found} in all")]
    TooFewGpus {
        /// GPUs that were requested.
        n_gpus: usize,
        /// The first one's number.
        first: usize,
        /// GPUs there are.
        n_found: usize,
    },
    /// GPUs that were to compute the model together, next to something that leaves a part of it to the CPU.
    #[error("a model on several GPUs cannot have a part on the CPU")]
    GroupNotWhole,
    /// Adapters of a model of which a GPU has a part only.
    #[error("adapters need all of the model on the CPU or on one GPU, but here a GPU has a part of it")]
    AdaptersNotWhole,
    /// The GPU's part of the model exceeds its memory.
    #[error(
        "the GPU has {} MiB free and needs {} MiB for its part of the model: {} MiB are missing; {}",
        free_bytes >> 20,
        needed_bytes.div_ceil(1 << 20),
        needed_bytes.div_ceil(1 << 20).saturating_sub(free_bytes >> 20),
        what_fits(*fitting_layers, *n_layers, *fitting_host_experts)
    )]
    SplitTooLarge {
        /// Bytes that its part takes.
        needed_bytes: u64,
        /// Bytes that a model may take.
        free_bytes: u64,
        /// Layers that would fit, the last ones, with their parts placed as requested.
        fitting_layers: usize,
        /// Layers, from the first on, whose experts the CPU would have to keep for all that was requested to fit; `None` where
        /// that would not do.
        fitting_host_experts: Option<usize>,
        /// Layers there are.
        n_layers: usize,
    },
    /// The CPU alone computes the model faster than with a part on the GPU.
    #[error(
        "by bandwidths ({bandwidths}) the CPU alone generates {alone_per_s:.1} tokens/s at most, and with the parts that fit on the GPU {split_per_s:.1}"
    )]
    CpuIsQuicker {
        /// Tokens per second of the CPU alone, from bytes and bandwidths.
        alone_per_s: f64,
        /// Tokens per second of the fastest placement with a part on the GPU.
        split_per_s: f64,
        /// The bandwidths.
        bandwidths: Bandwidths,
    },
    /// A step that was to measure the routes of a split failed.
    #[error("the routes of the split cannot be measured: {source}")]
    Calibration {
        /// Why.
        source: StepError,
    },
    /// Experts were to be placed, and the model has none.
    #[error("the model has no experts that could be placed")]
    NoExperts,
    /// A GPU was requested and given no part of any layer.
    #[error("this placement leaves no part of any layer on the GPU")]
    NothingOnGpu,
    /// The CPU's part of a split model exceeds the machine's memory.
    #[error(
        "the CPU's part of the model needs {} MiB of memory, and there are {} MiB",
        needed_bytes.div_ceil(1 << 20),
        memory_bytes >> 20
    )]
    HostPartTooLarge {
        /// Needed memory.
        needed_bytes: u64,
        /// The keys and values in it.
        kv_bytes: u64,
        /// Memory of the machine, or, for weights, the memory that is available now.
        memory_bytes: u64,
    },
    /// A load on the CPU that is larger than the memory that this process can have.
    #[error(
        "the model needs {} of memory, {} of it for keys and values, and {limit}",
        size(plan.total_bytes()),
        size(plan.kv_bytes)
    )]
    NotEnoughMemory {
        /// Memory plan of the load.
        plan: Box<MemoryPlan>,
        /// The memory that there is, and the cause of that limit.
        limit: MemoryLimit,
    },
    /// Weights that do not fit into the memory that is available now.
    #[error(
        "the model's weights take {} of memory, and {} are available now",
        size(*weights_bytes),
        size(*available_bytes as usize)
    )]
    WeightsTooLarge {
        /// Size of the weights.
        weights_bytes: usize,
        /// Available memory, including swap.
        available_bytes: u64,
    },
    /// A KV cache that is smaller than one context.
    #[error("a KV cache of {kv_tokens} tokens is less than one context of {n_ctx} tokens")]
    KvCacheTooSmall {
        /// Tokens of the cache.
        kv_tokens: usize,
        /// Tokens of a context.
        n_ctx: usize,
    },
    /// The draft model cannot be opened or loaded.
    #[error("draft model {}: {source}", path.display())]
    Draft {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: Box<Error>,
    },
    /// The draft model has another vocabulary.
    #[error("draft model {}: its vocabulary is not the model's: {difference}", path.display())]
    DraftVocabulary {
        /// Its path.
        path: PathBuf,
        /// Description of the difference.
        difference: String,
    },
    /// The draft model is an encoder.
    #[error("draft model {}: it is an encoder, which predicts no next token", path.display())]
    DraftIsEncoder {
        /// Its path.
        path: PathBuf,
    },
    /// The draft model or MTP layer does not fit next to the model.
    #[error(
        "draft model {}: it needs {} of memory next to the model's {}, and {limit}",
        path.display(),
        size(*needed_bytes),
        size(*model_bytes)
    )]
    DraftTooLarge {
        /// Its path.
        path: PathBuf,
        /// Needed memory.
        needed_bytes: usize,
        /// Memory of the model.
        model_bytes: usize,
        /// The keys and values of both.
        kv_bytes: usize,
        /// The memory that there is, and the cause of that limit.
        limit: MemoryLimit,
    },
    /// A draft model, next to a model on several devices.
    #[error("a draft model needs a model that is wholly on the CPU or on one GPU")]
    DraftNotWhole,
    /// The drafting model or layer does not fit into a GPU's memory next to the model.
    #[error(
        "the draft model or MTP layer needs {} of the GPU's memory next to the model's {}, and both may take {}",
        size(*needed_bytes),
        size(*model_bytes),
        size(*room_bytes as usize)
    )]
    NoRoomToGuess {
        /// Bytes that it needs.
        needed_bytes: usize,
        /// Bytes that the model needs.
        model_bytes: usize,
        /// Bytes that both may take.
        room_bytes: u64,
    },
    /// Drafts of a draft model were requested, and none is given.
    #[error("drafts of a model are requested, but no draft model is given")]
    NoDraft,
    /// The file of an MTP layer cannot be used.
    #[error("MTP layer {}: {source}", path.display())]
    Mtp {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: Box<tokenmill_model::LoadError>,
    },
    /// The file of an MTP layer has another vocabulary than the model.
    #[error("MTP layer {}: its vocabulary is not the model's: {difference}", path.display())]
    MtpVocabulary {
        /// Its path.
        path: PathBuf,
        /// Description of the difference.
        difference: String,
    },
    /// Drafts of the MTP layer were requested, and the model has none.
    #[error("this model has no MTP layer, and no file next to it has one that fits")]
    NoMtp,
    /// Drafts of the MTP layer were requested for a model on several devices.
    #[error("the MTP layer needs a model that is wholly on the CPU or on one GPU")]
    MtpNotWhole,
    /// A context is to be shifted of a model that continues no text.
    #[error("this model generates no text, so it has no context to shift")]
    NothingToShift,
    /// More tokens are to be kept where a context is shifted than its half has.
    #[error("{keep} tokens cannot be kept in a context of {n_ctx} tokens that is shifted, {maximum} at most")]
    KeepTooLong {
        /// Tokens to keep.
        keep: usize,
        /// The most that can be.
        maximum: usize,
        /// Tokens of a context.
        n_ctx: usize,
    },
    /// The model has no chat template, and a conversation needs one.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The last message is to be continued, but the template writes more after its text.
    #[error("the chat template does not end in the last message's text, so this text cannot be continued")]
    NotContinuable,
    /// Vectors were asked of a model that ranks documents.
    #[error("this model ranks documents and makes no embeddings; load an embedding model")]
    MakesNoEmbeddings,
    /// Scores were asked of a model that does not rank documents.
    #[error("this model does not rank documents; load a reranker, such as bge-reranker or Qwen3-Reranker")]
    RanksNothing,
    /// An instruction was given to a reranker that takes a query and a document only.
    #[error("this reranker takes a query and documents, but no instruction")]
    NoPlaceForInstruction,
    /// Questions about a state cannot be answered.
    #[error(transparent)]
    Decide(#[from] DecideError),
    /// A file is not a usable image encoder.
    #[error("{}", projector_text(path, source))]
    Projector {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<LoadError>,
    },
    /// An image encoder of another model.
    #[error(
        "the image encoder {} is of another model: its rows are {found} wide, and the model's {expected}",
        path.display()
    )]
    ProjectorWidth {
        /// The file.
        path: PathBuf,
        /// Width of its rows.
        found: usize,
        /// Width of the model's hidden states.
        expected: usize,
    },
    /// An image encoder of another family.
    #[error(
        "the image encoder {} is of the family `{family}`, which models of the architecture `{arch}` do not have",
        path.display()
    )]
    ProjectorFamily {
        /// The file.
        path: PathBuf,
        /// Its family.
        family: &'static str,
        /// The model's architecture.
        arch: String,
    },
    /// The rows of an encoder have places in a plane, and the model's file does not state the sections of rope for them.
    #[error(
        "the image encoder {} needs a model with RoPE sections (`rope.dimension_sections`), but this model's file has no fitting ones; convert it again",
        path.display()
    )]
    ProjectorPlane {
        /// The encoder's file.
        path: PathBuf,
    },
    /// An image encoder was named, but the model's device or architecture takes only tokens.
    #[error("images cannot be used where this model is computed; leave {} out, or compute on the CPU with `--device cpu`", path.display())]
    TakesNoImages {
        /// The encoder's file.
        path: PathBuf,
    },
    /// A GPU that could compute only a part of a model is passed over, since a divided model takes no images.
    #[error("a model that a GPU and the CPU share takes no images, which {} encodes", path.display())]
    ImagesOnParts {
        /// The encoder.
        path: PathBuf,
    },
    /// An image for a model that was loaded without its encoder.
    #[error("this model was loaded without an image encoder")]
    NoVision,
    /// An image for a model of an architecture that sees none.
    #[error("a model of the architecture `{arch}` takes no images; models of {} do", sighted.join(", "))]
    SeesNoImages {
        /// The model's architecture.
        arch: String,
        /// Architectures that see.
        sighted: Vec<&'static str>,
    },
    /// The model has no token for an image.
    #[error("the model's vocabulary has no `{mark}`, which stands for an image")]
    NoImageMark {
        /// The token.
        mark: &'static str,
    },
    /// The template does not write a mark for each image.
    #[error("the model's chat template has {found} places for {expected} images")]
    ImagePlaces {
        /// Marks that it wrote.
        found: usize,
        /// Images of the conversation.
        expected: usize,
    },
    /// The URL of an image cannot be used.
    #[error("the image of message {message_idx} cannot be read: {reason}")]
    ImageUrl {
        /// Index of the message.
        message_idx: usize,
        /// Cause of the error.
        reason: &'static str,
    },
    /// An image cannot be read.
    #[error("image {} of the conversation cannot be read: {source}", image_idx + 1)]
    Image {
        /// Its index among the conversation's images.
        image_idx: usize,
        /// Why.
        source: ImageError,
    },
    /// An image could not be encoded.
    #[error("an image could not be encoded: {0}")]
    Vision(#[from] VisionError),
    /// The chat template refused the conversation, or is not a template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The constraint cannot be enforced.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// A tool is to be called that is not offered.
    #[error("there is no tool `{name}` to call")]
    UnknownTool {
        /// Its name.
        name: String,
    },
    /// Calls cannot be held to their schemas in the model's format.
    #[error(transparent)]
    CallForm(#[from] CallFormError),
    /// An answer cannot be either calls of the tools that are offered or of a shape.
    #[error(
        "in the call format `{family}`, calls of these tools look like an answer in a shape or cannot follow their schemas; leave out the tools or the shape, require a call, or drop `strict`"
    )]
    ShapeOrCalls {
        /// The family whose calls these are.
        family: &'static str,
    },
    /// No adapter has the name that a request gives.
    #[error("there is no adapter `{name}`; {}", match &available[..] {
        [] => "none is loaded".to_owned(),
        names => format!("loaded are {}", names.join(", ")),
    })]
    UnknownAdapter {
        /// The name.
        name: String,
        /// Available names.
        available: Vec<String>,
    },
    /// An adapter's files cannot be read, or are not those of an adapter.
    #[error("adapter `{name}`: {source}")]
    AdapterFile {
        /// The adapter.
        name: String,
        /// Why.
        source: LoadError,
    },
    /// A name that an adapter cannot have.
    #[error("the name `{name}` {reason}")]
    AdapterName {
        /// The name.
        name: String,
        /// Cause of the error.
        reason: &'static str,
    },
    /// As many adapters are loaded as may be.
    #[error("{maximum} adapters are loaded, which is the limit; unload one first")]
    TooManyAdapters {
        /// The limit.
        maximum: usize,
    },
    /// An adapter for a model whose files this library has not read.
    #[error("this model was built by its caller and takes no adapters")]
    NoAdapters,
    /// A session cannot be saved or restored.
    #[error("session {}: {source}", path.display())]
    Session {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: SessionError,
    },
    /// The system starts no further thread.
    #[error("cannot start a thread: {source}")]
    Thread {
        /// Cause of the error.
        source: io::Error,
    },
    /// The engine refused the request or failed at it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
