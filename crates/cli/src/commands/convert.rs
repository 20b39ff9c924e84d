//! `convert`: a Hugging Face folder to a GGUF file.

use std::{ops::ControlFlow, path::PathBuf, str::FromStr};

use tokenmill::{Conversion, ModelSource};
use tokenmill_convert::{ImportanceMatrix, OutType, QuantizeSummary};

use crate::{
    failure::Failure,
    interrupt::Interrupt,
    model_name::FetchArgs,
    note::note,
    numbers::{count, size},
    output, progress,
    visible::visible,
};

use super::quantize;

/// Make a GGUF file of a Hugging Face folder.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill convert Llama-3.2-1B-Instruct llama.gguf\n  \
    tokenmill convert Llama-3.2-1B-Instruct llama-q4_k_m.gguf --type q4_k_m\n  \
    tokenmill convert Llama-3.2-1B-Instruct llama-iq3_xs.gguf --type iq3_xs --imatrix llama.imatrix.gguf\n  \
    tokenmill convert Qwen/Qwen3-0.6B qwen.gguf --type f16\n\n\
    The file has the tensors and keys that llama.cpp's convert_hf_to_gguf.py writes; docs/converting.md lists what differs.\n\
    Vectors and what must be exact stay in F32. What files of an architecture have no key for is refused before anything is written.\n\
    With `quantize` a GGUF file gets another type.")]
pub(crate) struct Args {
    /// A folder with config.json, safetensors files and a tokenizer, or OWNER/REPOSITORY of the Hub
    folder: PathBuf,
    /// The GGUF file to write; it appears when it is whole
    output: PathBuf,
    /// Type of the weights: auto, f32, f16, bf16, q8_0, or a type that `quantize` lists; auto is the 16-bit type of the folder
    #[arg(long = "type", visible_alias = "outtype", value_name = "TYPE", default_value = "auto", value_parser = OutType::from_str)]
    out: OutType,
    /// Importance matrix for a type that `quantize` lists: which weights matter most, as `imatrix` or llama-imatrix writes it
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Name of the pre-tokenizer, where it is not found out
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
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
        return Err(Failure::usage("`-t 0` leaves nothing to work with"));
    }
    if !args.dry_run && args.output.is_dir() {
        return Err(Failure::usage(format!(
            "{} is a folder; name a file in it",
            args.output.display()
        )));
    }
    let source = ModelSource::find(args.fetch.resolve(&args.folder)?)?;
    source.check()?;
    let ModelSource::Folder(folder) = &source else {
        return Err(
            Failure::input(format!("{} is a GGUF file already", source.path().display()))
                .hint("`tokenmill quantize` gives it another type"),
        );
    };
    if let Some(matrix) = args.imatrix.as_deref().filter(|_| !args.dry_run) {
        output::refuse_input(&args.output, &[matrix])?;
    }
    let matrix = args.imatrix.as_ref().map(ImportanceMatrix::open).transpose()?;
    let mut conversion = Conversion::open(folder, args.pre.as_deref())?;
    if let Some(matrix) = matrix {
        conversion = conversion.importance(matrix);
    }
    if conversion.keeps_tokens()? == Some(false) {
        note!("the tokenizer in the file cuts some texts otherwise than that of the folder");
    }
    if args.dry_run {
        let summary = conversion.plan(args.out)?;
        quantize::tell_about(&summary);
        return output::print_line(&format!("{} would be {}", args.out, sizes(&summary)));
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
    output::print_line(&format!(
        "wrote {}: {}, {} tensors",
        args.output.display(),
        conversion.architecture(),
        summary.n_tensors
    ))?;
    output::print_line(&format!("{} takes {}", args.out, sizes(&summary)))
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
