//! `convert`: a Hugging Face folder to a GGUF file.

use std::{
    fs::{self, DirEntry},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use tokenmill::{
    Error,
    advice::first_few,
    convert::{Conversion, TokenDifferences},
    load::ModelSource,
};
use tokenmill_convert::{OutType, QuantizeSummary};
use tokenmill_model::check_is_model;

use crate::{
    failure::Failure,
    interrupt::Interrupt,
    model_name::FetchArgs,
    note::note,
    numbers::{count, size},
    output::{self, OverwriteArgs},
    progress,
    type_names::out_type,
    visible::visible,
};

use super::quantize::{self, ImportanceArgs};

/// Make a GGUF file of a Hugging Face folder.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill convert Llama-3.2-1B-Instruct llama.gguf\n  \
    tokenmill convert Llama-3.2-1B-Instruct llama-q4_k_m.gguf --type q4_k_m\n  \
    tokenmill convert Llama-3.2-1B-Instruct llama-iq3.gguf --type iq3_xs --imatrix llama.imatrix.gguf\n  \
    tokenmill convert Qwen/Qwen3-0.6B qwen.gguf --type f16\n  \
    tokenmill convert gemma-3-4b-it mmproj-gemma-3-4b-it.gguf --mmproj\n\n\
    The file has the tensors and keys that llama.cpp's convert_hf_to_gguf.py writes; docs/converting.md lists what differs.\n\
    Vectors and weights that must be exact stay in F32. A folder with a property that GGUF files of its architecture have no key for is refused before anything is written.\n\
    With `quantize` a GGUF file gets another type.")]
pub(crate) struct Args {
    /// A folder with config.json, safetensors files and a tokenizer, or OWNER/REPOSITORY of the Hub
    folder: PathBuf,
    /// The GGUF file to write; it appears when it is complete
    output: PathBuf,
    /// Type of the weights: auto, f32, f16, bf16, q8_0, or a type that `quantize` lists; auto is the 16-bit type of the folder
    #[arg(long = "type", visible_alias = "outtype", value_name = "TYPE", default_value = "auto", value_parser = out_type(),
        hide_possible_values = true)]
    out: OutType,
    #[command(flatten)]
    importance: ImportanceArgs,
    /// Name of the pre-tokenizer, if it is not recognized
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
    /// Write the folder's image encoder, which the model needs to see images; its types are auto, f32, f16, bf16 and q8_0
    #[arg(long, conflicts_with_all = ["imatrix", "pre"])]
    mmproj: bool,
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// Say how large the file will be, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Threads [default: one for each processor]
    #[arg(short, long, value_name = "N", value_parser = count)]
    threads: Option<usize>,
    #[command(flatten)]
    fetch: FetchArgs,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.threads == Some(0) {
        return Err(Failure::usage("`-t 0` leaves no thread to work with"));
    }
    if !args.dry_run && args.output.is_dir() {
        return Err(Failure::usage(format!(
            "{} is a folder; name a file in it",
            args.output.display()
        )));
    }
    let path = args.fetch.resolve(&args.folder)?;
    let folder = &folder_of(&path)?;
    if !args.dry_run {
        let inputs: Vec<&PathBuf> = args.importance.imatrix.iter().chain([folder]).collect();
        output::refuse_input(&args.output, &inputs)?;
        args.overwrite.check(&args.output)?;
    }
    let matrix = args.importance.open()?;
    let mut conversion = if args.mmproj {
        Conversion::open_encoder(folder)?
    } else {
        Conversion::open(folder, args.pre.as_deref())?
    };
    if let Some(matrix) = matrix {
        conversion = conversion.importance(matrix);
    }
    if let Some(TokenDifferences {
        texts,
        depends_on_pre,
    }) = conversion.token_differences()?
    {
        let what_to_do = if depends_on_pre {
            "`--pre NAME` names another pre-tokenizer"
        } else {
            "files of this kind have no key for it, and `run` and `serve` take the folder itself"
        };
        note!(
            "the tokenizer in the file splits texts with {} differently from that of the folder (hint: {what_to_do})",
            texts.join(", "),
        );
    }
    if args.dry_run {
        let summary = conversion.plan(args.out)?;
        quantize::tell_about(&summary);
        return output::print_sentence(&format!("{} would be {}", args.out, sizes(&summary)));
    }
    let interrupt = Interrupt::install()?;
    let bar = progress::bytes("converting");
    let result = conversion.write(&args.output, args.out, args.threads, &mut |progress| {
        progress::set_bytes(&bar, progress.n_bytes_done, progress.n_bytes_total);
        bar.set_message(visible(progress.tensor).into_owned());
        if interrupt.is_pressed() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let summary = result?;
    quantize::tell_about(&summary);
    output::print_sentence(&format!(
        "wrote {}: {}, {} tensors",
        args.output.display(),
        conversion.architecture(),
        summary.n_tensors
    ))?;
    output::print_sentence(&format!("{} takes {}", args.out, sizes(&summary)))?;
    if conversion.leaves_encoder() {
        note!(
            "the file has no image encoder (hint: `tokenmill convert FOLDER mmproj-NAME.gguf --mmproj` writes it)"
        );
    }
    if args.mmproj && !has_name_of_encoder(&args.output) {
        note!(
            "an encoder is found next to its model if its name has `mmproj` in it (hint: otherwise `--mmproj FILE` of `run` and `serve` names it)"
        );
    }
    Ok(())
}

/// Whether a file is found as the encoder of a model next to it.
fn has_name_of_encoder(path: &Path) -> bool {
    (path.file_name()).is_some_and(|name| name.to_string_lossy().to_ascii_lowercase().contains("mmproj"))
}

/// Returns the Hugging Face folder at a path. GGUF files may lie in it, such as earlier conversions.
///
/// # Errors
/// Fails if the path is not such a folder, with a hint.
fn folder_of(path: &Path) -> Result<PathBuf, Failure> {
    if is_hugging_face(path) {
        return Ok(path.to_owned());
    }
    // The built-in model is not a folder either, and is answered below.
    if !path.exists() && path != Path::new("demo") {
        return Err(Failure::input(format!("there is no folder {}", path.display())).hint(WHAT_FOLDER_IS));
    }
    let source = match ModelSource::find(path) {
        Err(Error::SeveralModels { folder, names }) => {
            let failure = Failure::input(format!(
                "{} holds GGUF files, but no safetensors with config.json",
                folder.display()
            ));
            return Err(failure.hint(match folder_below(&folder) {
                Some(below) => format!("{} has them", below.display()),
                None => format!("{QUANTIZE_DOES}, of these: {}", first_few(&names)),
            }));
        }
        Err(error @ Error::NoModel { .. }) => return Err(Failure::from(error).hint(WHAT_FOLDER_IS)),
        source => source?,
    };
    source.check()?;
    if let ModelSource::Folder(folder) = &source {
        return Ok(folder.clone());
    }
    if let Some(file) = source.open_gguf()? {
        check_is_model(&file)?;
    }
    if path == Path::new("demo") {
        let failure = Failure::input("demo is the model built into the program, and no folder");
        return Err(failure.hint(WHAT_FOLDER_IS));
    }
    let name = source.path().display();
    Err(Failure::input(format!("{name} is a GGUF file already")).hint(QUANTIZE_DOES))
}

/// The forms that FOLDER may have.
const WHAT_FOLDER_IS: &str =
    "FOLDER is a Hugging Face folder, with config.json and safetensors files, or OWNER/REPOSITORY of the Hub";

/// The hint for a file that is a GGUF file already.
const QUANTIZE_DOES: &str = "`tokenmill quantize` gives it another type";

/// Whether a folder has a configuration and safetensors.
fn is_hugging_face(folder: &Path) -> bool {
    let is_safetensors = |entry: &DirEntry| entry.path().extension().is_some_and(|end| end == "safetensors");
    let mut entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    folder.join("config.json").is_file() && entries.any(|entry| is_safetensors(&entry))
}

/// The first Hugging Face folder in a folder, by name.
fn folder_below(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let folders = entries
        .map(|entry| entry.path())
        .filter(|path| is_hugging_face(path));
    folders.min()
}

/// The sizes before and after, in words.
fn sizes(summary: &QuantizeSummary) -> String {
    let bits = summary.n_bytes_after as f64 * 8.0 / summary.n_values.max(1) as f64;
    format!(
        "{}, {bits:.2} bits a weight; the folder's weights take {}",
        size(summary.n_bytes_after),
        size(summary.n_bytes_before)
    )
}
