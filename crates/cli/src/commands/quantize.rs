//! `quantize`: a GGUF file to a smaller one.

use std::{
    fmt::Write as _,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    str::FromStr,
    thread,
};

use tokenmill::text::without_mark;
use tokenmill_convert::{ConvertError, ImportanceMatrix, Preset, QuantizeSummary, Quantizer, Recipe};
use tokenmill_gguf::{GgufFile, TensorType};
use tokenmill_model::check_is_model;

use crate::{
    failure::Failure,
    interrupt::Interrupt,
    model_name::FetchArgs,
    note::note,
    numbers::{count, size},
    output::{self, OverwriteArgs},
    progress,
    swapped::refuse_type_as_output,
    type_names::{preset, read_tensor_type, tensor_type},
    visible::visible,
};

/// Make a smaller model file.
#[derive(clap::Args)]
#[command(after_help = after_help())]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Args {
    /// The GGUF file to read, best in F32, BF16 or F16, or any part of a split file. Or OWNER/REPOSITORY:TYPE of the Hub
    input: PathBuf,
    /// The GGUF file to write; it appears when it is complete
    output: PathBuf,
    /// The type to make, from the list below
    #[arg(value_name = "TYPE", value_parser = preset(), hide_possible_values = true)]
    preset: Preset,
    #[command(flatten)]
    importance: ImportanceArgs,
    /// Type of the tensors with names that match a regular expression; may be repeated, the first match counts
    #[arg(long, value_name = "NAME=TYPE", value_parser = TypeByName::from_str)]
    tensor_type: Vec<TypeByName>,
    /// File with NAME=TYPE for many tensors, separated by spaces or lines
    #[arg(long, value_name = "FILE")]
    tensor_type_file: Option<PathBuf>,
    /// Type of the output projection
    #[arg(long, value_name = "TYPE", value_parser = tensor_type(), hide_possible_values = true)]
    output_tensor_type: Option<TensorType>,
    /// Type of the token embeddings
    #[arg(long, value_name = "TYPE", value_parser = tensor_type(), hide_possible_values = true)]
    token_embedding_type: Option<TensorType>,
    /// Give all tensors the same type, without more bits for important ones
    #[arg(long)]
    pure: bool,
    /// Leave the output projection as it is
    #[arg(long)]
    leave_output_tensor: bool,
    /// Allow tensors that are quantized already; this loses more than quantizing the original
    #[arg(long)]
    allow_requantize: bool,
    /// Write as many files as the input has, OUTPUT-00001-of-N.gguf and so on
    #[arg(long)]
    keep_split: bool,
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// Say how large the result will be, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Threads [default: one for each processor]
    #[arg(short, long, value_name = "N", value_parser = count)]
    threads: Option<usize>,
    #[command(flatten)]
    fetch: FetchArgs,
}

/// Which weights matter most.
#[derive(clap::Args)]
pub(super) struct ImportanceArgs {
    /// Importance matrix: which weights matter most, as `imatrix` or llama-imatrix writes it
    #[arg(long, value_name = "FILE")]
    pub(super) imatrix: Option<PathBuf>,
    /// Accept an importance matrix that lacks a layer, or all tensors of a kind, such as experts
    #[arg(long, requires = "imatrix")]
    allow_partial_imatrix: bool,
}

impl ImportanceArgs {
    /// Reads the matrix, if there is one.
    pub(super) fn open(&self) -> Result<Option<ImportanceMatrix>, ConvertError> {
        let matrix = self.imatrix.as_ref().map(ImportanceMatrix::open).transpose()?;
        Ok(if self.allow_partial_imatrix {
            matrix.map(ImportanceMatrix::allow_partial)
        } else {
            matrix
        })
    }
}

/// Examples, and the types with what they are for.
fn after_help() -> String {
    let mut text = "Examples:\n  \
        tokenmill quantize model-f16.gguf model-q4_k_m.gguf q4_k_m\n  \
        tokenmill quantize unsloth/Qwen3-0.6B-GGUF:BF16 qwen-q4_k_m.gguf q4_k_m\n  \
        tokenmill quantize model-f16.gguf model-iq3_xs.gguf iq3_xs --imatrix model.imatrix.gguf\n  \
        tokenmill quantize in.gguf out.gguf q4_k_m --tensor-type ffn_up=q6_K --tensor-type 'blk\\.0\\.=q8_0'\n\n\
        Types, with bits per weight:\n"
        .to_owned();
    for preset in Preset::ALL {
        let _ = writeln!(text, "  {:<10} {}", preset.name(), preset.about());
    }
    text + "\nThe result equals that of llama-quantize byte for byte. Rows that are not a multiple of a type's block take a type with smaller \
        blocks.\nQuantize the original: a file that is quantized already has lost precision."
}

/// A type for tensors, by a regular expression for their names.
#[derive(Debug, Clone)]
struct TypeByName {
    pattern: String,
    ty: TensorType,
}

impl FromStr for TypeByName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.rsplit_once('=') {
            Some((pattern, ty)) if !pattern.is_empty() => Ok(Self {
                pattern: pattern.to_owned(),
                ty: read_tensor_type(ty)?,
            }),
            _ => Err("expected a name and a type, such as ffn_down=q6_K".to_owned()),
        }
    }
}

impl Args {
    fn recipe(&self) -> Result<Recipe, Failure> {
        let mut recipe = Recipe::new(self.preset);
        recipe.is_pure = self.pure;
        recipe.keeps_output = self.leave_output_tensor;
        recipe.output_type = self.output_tensor_type;
        recipe.embedding_type = self.token_embedding_type;
        let mut by_name = self.tensor_type.clone();
        if let Some(path) = &self.tensor_type_file {
            let text = fs::read_to_string(path).map_err(|error| Failure::unreadable(path, &error))?;
            for word in without_mark(&text).split_whitespace() {
                let entry = word
                    .parse::<TypeByName>()
                    .map_err(|error| Failure::input(format!("{}: `{word}`: {error}", path.display())))?;
                by_name.push(entry);
            }
        }
        for TypeByName { pattern, ty } in by_name {
            recipe = recipe.with_tensor_type(&pattern, ty)?;
        }
        Ok(recipe)
    }

    /// Refuses to overwrite input files. (The library knows the other parts of the model.)
    fn refuse_inputs(&self) -> Result<(), Failure> {
        let beside = [&self.importance.imatrix, &self.tensor_type_file];
        let beside = beside.into_iter().flatten().chain([&self.input]);
        output::refuse_input(&self.output, &beside.collect::<Vec<_>>())
    }

    /// Refuses tensor names that the model does not have: a typo would make another file than intended. Names
    /// from a file may be for several models, and only cause a note.
    fn check_names(&self, recipe: &Recipe, file: &GgufFile) -> Result<(), Failure> {
        for (idx, pattern) in recipe.unused_tensor_types(file.tensors().map(|info| &*info.name)) {
            let message = format!("no tensor of the model has `{pattern}` in its name");
            if idx < self.tensor_type.len() {
                return Err(Failure::usage(message).hint("`tokenmill inspect` lists the tensors"));
            }
            note!("{}", visible(&message));
        }
        Ok(())
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.threads == Some(0) {
        return Err(Failure::usage("`-t 0` leaves no thread to work with"));
    }
    if !args.dry_run {
        args.refuse_inputs()?;
        if args.output.is_dir() {
            return Err(Failure::usage(format!(
                "{} is a folder; name a file in it",
                args.output.display()
            )));
        }
        refuse_type_as_output(&args.input, &args.output)?;
        // The names of several parts are known once the input is open.
        if !args.keep_split {
            args.overwrite.check(&args.output)?;
        }
    }
    if args.input == Path::new("demo") && !args.input.exists() {
        return Err(Failure::usage(
            "`demo` is built into the program, and `quantize` takes a GGUF file or a name of the Hub",
        ));
    }
    let recipe = args.recipe()?;
    let input = &args.fetch.resolve(&args.input)?;
    if input.is_dir() {
        let given = args.input.display();
        let what = if input == &args.input {
            "is a folder"
        } else {
            "has a folder of safetensors"
        };
        return Err(Failure::input(format!("{given} {what}, not a GGUF file"))
            .hint(format!("`tokenmill convert {given} OUT.gguf --type TYPE` makes one; `run`, `chat` and `serve` quantize while they load, with --quantize TYPE")));
    }
    let file = GgufFile::open(input)?;
    check_is_model(&file)?;
    args.check_names(&recipe, &file)?;
    let matrix = args.importance.open()?;
    let n_threads = args
        .threads
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let mut quantizer = Quantizer::new(&file, recipe).threads(n_threads);
    if let Some(matrix) = &matrix {
        quantizer = quantizer.importance(matrix);
    }
    if args.allow_requantize {
        quantizer = quantizer.allow_requantize();
    }
    if args.keep_split {
        quantizer = quantizer.keep_split();
    }
    if args.dry_run {
        let summary = quantizer.plan()?;
        tell_about(&summary);
        tell_about_size(&summary);
        return output::print_sentence(&format!("{} would be {}", args.preset, sizes(&summary)));
    }
    for path in quantizer.outputs(&args.output)? {
        args.overwrite.check(&path)?;
    }
    // Warnings that may make a person stop are printed before the work.
    let plan = quantizer.plan()?;
    tell_about(&plan);
    tell_about_size(&plan);
    let interrupt = Interrupt::install()?;
    let bar = progress::bytes("quantizing");
    let result = quantizer.write(&args.output, &mut |progress| {
        progress::set_bytes(&bar, progress.n_bytes_done, progress.n_bytes_total);
        bar.set_message(visible(progress.tensor).into_owned());
        if interrupt.is_pressed() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let summary = result?;
    for path in &summary.paths {
        output::print_line(&format!("wrote {}", path.display()))?;
    }
    output::print_sentence(&format!("{} takes {}", args.preset, sizes(&summary)))
}

/// The sizes before and after, in words.
fn sizes(summary: &QuantizeSummary) -> String {
    let bits = summary.n_bytes_after as f64 * 8.0 / summary.n_values.max(1) as f64;
    format!(
        "{}, {bits:.2} bits a weight; the original takes {}",
        size(summary.n_bytes_after),
        size(summary.n_bytes_before)
    )
}

/// Says where the work is worth nothing, or little.
fn tell_about_size(summary: &QuantizeSummary) {
    if let Some(text) = about_size(summary) {
        note!("{text}");
    }
}

/// Returns the warning about a file that gains nothing.
fn about_size(summary: &QuantizeSummary) -> Option<String> {
    if summary.n_changed == 0 {
        return Some("no tensor gets another type: the weights are those of the input".to_owned());
    }
    if summary.n_bytes_after < summary.n_bytes_before {
        return None;
    }
    let larger = if summary.n_bytes_after > summary.n_bytes_before {
        "larger than its input"
    } else {
        "as large as its input"
    };
    let sizes = format!(
        "{} instead of {}",
        size(summary.n_bytes_after),
        size(summary.n_bytes_before)
    );
    Some(format!(
        "the result is {larger} and no better: {sizes}, since the input's types have lost precision already"
    ))
}

/// Warns if tensors got other types than requested, and if the importance matrix is that of another model.
pub(super) fn tell_about(summary: &QuantizeSummary) {
    if let Some(name) = &summary.not_ternary {
        note!(
            "ternary types suit only models that were trained for them; the values of `{}` are not ternary, and the result will hardly be usable",
            visible(name)
        );
    }
    if let Some(measured_on) = &summary.measured_on {
        note!(
            "the importance matrix fits, but was measured on another model, {}: types of few bits may come out worse than without it",
            visible(measured_on)
        );
    }
    if let [(name, choice), ..] = &summary.fallbacks[..] {
        note!(
            "{} of {} tensors have rows that are not a multiple of the block of their type, and took another type: `{}` is {} instead of {}",
            summary.fallbacks.len(),
            summary.n_tensors,
            visible(name),
            choice.ty,
            choice.instead_of.map_or("", TensorType::name),
        );
    }
    if let [name, ..] = &summary.without_importance[..] {
        note!(
            "the importance matrix has no entries for {} tensors, such as `{}`; they are quantized without it",
            summary.without_importance.len(),
            visible(name),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gains_nothing_is_said() {
        let said = |n_changed, n_bytes_before, n_bytes_after| {
            let mut summary = QuantizeSummary::default();
            (summary.n_changed, summary.n_bytes_before, summary.n_bytes_after) =
                (n_changed, n_bytes_before, n_bytes_after);
            about_size(&summary).unwrap_or_default()
        };
        assert_eq!(said(3, 4096, 2048), "");
        assert!(said(0, 4096, 4096).starts_with("no tensor gets another type"));
        assert!(
            said(3, 2048, 4096)
                .starts_with("the result is larger than its input and no better: 4.0 KiB instead of 2.0 KiB")
        );
        assert!(said(3, 2048, 2048).starts_with("the result is as large as its input and no better"));
    }

    #[test]
    fn a_type_by_name_has_both() {
        let entry: TypeByName = r"blk\.[0-9]=q6_k".parse().unwrap();
        assert_eq!(
            (entry.pattern.as_str(), entry.ty),
            (r"blk\.[0-9]", TensorType::Q6_K)
        );
        for wrong in ["ffn_down", "=q8_0", "ffn_down=q9"] {
            assert!(wrong.parse::<TypeByName>().is_err(), "{wrong}");
        }
    }
}
