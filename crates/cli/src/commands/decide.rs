//! `decide`: answers typed questions about a text, images or both with probabilities.
//!
//! The questions have the form of the System One API, and so has the JSON of the answers. Invariant: nothing is generated.

mod calibrate;

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};
use tokenmill::{
    Error, KvCache, Model,
    decide::{DecideParams, Decision, Question, QuestionKind, State, SystemOneQuestions},
    load::{ModelFacts, ModelSource, Projector},
};

use crate::{
    failure::Failure,
    input::{read_stdin, read_text},
    interrupt,
    load::{LoadArgs, load_opened},
    model_name::Companions,
    output,
    template::TemplateArgs,
    visible::visible,
    vision::{self, VisionArgs, read_image_file},
};

/// Questions that are computed side by side, at most.
const MAX_SEQS: usize = 16;

/// Characters of the bar of a certain option.
const BAR_WIDTH: usize = 32;

/// Answer questions about a text or images with probabilities.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill decide model.gguf --state mail.txt --questions questions.json\n  \
    echo 'The card was stolen.' | tokenmill decide demo --state - --questions questions.json --json\n  \
    tokenmill decide gemma-3-4b.gguf --image photo.jpg --questions questions.json\n  \
    tokenmill decide model.gguf --calibrate known.jsonl\n\n\
    The questions are a JSON object, as in requests to /v1/systemone:\n  \
    {\"fraud\": {\"type\": \"noul\", \"instructions\": \"Is it fraud?\"},\n   \
    \"team\": {\"type\": \"choice\", \"instructions\": \"Who takes it?\", \"criteria\": {\"cards\": \"card desk\", \"loans\": null}},\n   \
    \"risk\": {\"type\": \"score\", \"instructions\": \"How urgent?\", \"criteria\": [\"can wait\", \"today\", \"now\"]}}\n\n\
    The label mass is the share of the model's probability that the options have together. Near 0 the model wanted to write something else.")]
pub(crate) struct Args {
    /// A GGUF file, a folder with one, a Hugging Face folder, OWNER/REPOSITORY[:TYPE] of the Hub, NAME:TAG of Ollama, or `demo`
    model: PathBuf,
    /// The text that the questions are about; - reads standard input
    #[arg(long, value_name = "FILE", required_unless_present_any = ["calibrate", "image"])]
    state: Option<PathBuf>,
    /// Show the model an image, before the text; may be repeated, and stands for the text if there is none
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// The questions, a JSON object from names to questions
    #[arg(long, value_name = "FILE", required_unless_present = "calibrate")]
    questions: Option<PathBuf>,
    /// Fit a temperature for each type of question to known answers, and write the temperatures next to the model, where decisions find
    /// them. Each line of the file is a JSON object with `state`, `questions` and `answers`, from names of questions to the right answers
    #[arg(long, value_name = "FILE", conflicts_with_all = ["state", "image", "questions"])]
    calibrate: Option<PathBuf>,
    /// Ask each question in N orders of its options, and average the probabilities
    #[arg(long, value_name = "N", default_value_t = 1)]
    permutations: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    vision: VisionArgs,
    #[command(flatten)]
    load: LoadArgs,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    interrupt::ends_at_once()?;
    if args.template.asks_to_reason() {
        return Err(Failure::usage(
            "`--reasoning on` leaves no place for a label; decisions are made without reasoning",
        ));
    }
    if args.vision.is_off() && !args.image.is_empty() {
        return Err(Failure::usage(
            "`--image` and `--no-mmproj` contradict each other",
        ));
    }
    if let Some(examples) = &args.calibrate {
        return calibrate::run(args, examples);
    }
    let Some(questions) = &args.questions else {
        return Err(Failure::usage("`--questions` is missing"));
    };
    let asked = read_questions(questions)?;
    let state = read_state(args)?;
    let params = DecideParams {
        permutations: args.permutations,
        names: asked.names().to_vec(),
        ..DecideParams::default()
    };
    let named = |error: Error| match &error {
        Error::Decide(fault) if let Some(question_idx) = fault.question_idx() => {
            let name = visible(&asked.names()[question_idx]);
            Failure::input(format!("question `{name}`: {fault}"))
        }
        _ => error.into(),
    };
    // A fault is told before a model is downloaded or loaded.
    (params.check(&state, asked.questions())).map_err(|fault| named(fault.into()))?;
    let n_prompts = asked.questions().len().saturating_mul(args.permutations);
    let shows_images = state.n_images() > 0;
    let companions = Companions {
        encoder: shows_images && !args.vision.names_file(),
        ..Companions::default()
    };
    let path = args.load.fetch.resolve_with(&args.model, companions)?;
    let model = open(args, &path, n_prompts)?;
    if shows_images && !model.sees() {
        return Err(vision::refusal(&model, args.load.fetch.encoder_hint(&args.model)));
    }
    let mut answers = (model.start_deciding(state, asked.questions(), &params)).map_err(named)?;
    let decisions = answers.by_ref().collect::<Result<Vec<_>, _>>().map_err(named)?;
    if args.json {
        return output::print_json(&json!({
            "model": model.name(),
            "answers": asked.answers(&decisions),
            "usage": {
                "input_tokens": answers.n_prompt_tokens(),
                "input_tokens_details": { "cached_tokens": answers.n_cached_tokens() },
                "output_tokens": 0,
            },
        }));
    }
    let rows = asked.names().iter().zip(asked.questions()).zip(&decisions);
    let tables: Vec<String> = rows
        .map(|((name, question), decision)| table(name, question, decision))
        .collect();
    output::print(&tables.join("\n"))
}

/// Loads a model that computes some prompts side by side.
fn open(args: &Args, path: &Path, n_prompts: usize) -> Result<Model, Failure> {
    let mut options = args.load.options()?;
    options.n_seqs = n_prompts.clamp(1, MAX_SEQS);
    // They share the text.
    options.kv_cache = KvCache::Contexts(1);
    args.template.add_to(&mut options)?;
    options.needs_images = !args.image.is_empty();
    // Without an image the encoder would only take memory.
    options.projector = if options.needs_images || args.vision.names_file() {
        args.vision.projector()
    } else {
        Projector::None
    };
    let source = ModelSource::find(path)?;
    let network = options.open_network(&source)?;
    if let Some(flag) = args.template.of_prompts()
        && let Some(family) = ModelFacts::of(&network).decision_family
    {
        return Err(Failure::usage(format!(
            "`{flag}` does nothing here: models trained for decisions, such as this one (`{family}`), have a template of their own for them"
        )));
    }
    load_opened(&source, &network, &options)
}

/// Reads the images and the text.
fn read_state(args: &Args) -> Result<State, Failure> {
    let mut state = State::default();
    for path in &args.image {
        state = state.image(read_image_file(path)?);
    }
    let text = match &args.state {
        Some(path) if path == Path::new("-") => read_stdin()?,
        Some(path) => read_text(path)?,
        None => String::new(),
    };
    // The line break at the end of a file or a pipe does not belong to the text.
    Ok(state.text(text.trim_end_matches(['\r', '\n'])))
}

/// Reads the questions of a file.
fn read_questions(path: &Path) -> Result<SystemOneQuestions, Failure> {
    let text = read_text(path)?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::input(format!("{} is not JSON: {error}", path.display())))?;
    let map: &Map<String, Value> = value.as_object().ok_or_else(|| {
        Failure::input(format!("{} is not a JSON object", path.display()))
            .hint("`tokenmill decide --help` has an example")
    })?;
    SystemOneQuestions::parse(map).map_err(|error| Failure::input(format!("{}: {error}", path.display())))
}

/// Writes the answer to a question, with a bar for each option.
fn table(name: &str, question: &Question, decision: &Decision) -> String {
    let names: Vec<String> = match &question.kind {
        QuestionKind::Predicate { .. } => vec!["yes".to_owned(), "no".to_owned()],
        QuestionKind::Choice(options) => options
            .iter()
            .map(|option| visible(&option.name).into())
            .collect(),
        QuestionKind::Score(levels) => (levels.iter().enumerate())
            .map(|(level, text)| format!("{level} {}", visible(text)))
            .collect(),
    };
    let said = match &question.kind {
        QuestionKind::Predicate { .. } => format!("yes with {:.3}", decision.probabilities[0]),
        QuestionKind::Choice(_) => format!(
            "{}, confidence {:.3}",
            names[decision.likeliest()],
            decision.choice_confidence()
        ),
        QuestionKind::Score(_) => format!(
            "{:.2} of 0 to {}, confidence {:.3}",
            decision.expected_level(),
            names.len() - 1,
            decision.score_confidence()
        ),
    };
    let mut text = format!(
        "{}: {said} (label mass {:.3})\n",
        visible(name),
        decision.label_mass
    );
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    for (name, &probability) in names.iter().zip(&decision.probabilities) {
        let bar = "█".repeat((probability * BAR_WIDTH as f64).round() as usize);
        let row = format!("  {name:width$}  {probability:.3}  {bar}");
        writeln!(text, "{}", row.trim_end()).expect("writing to a string does not fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_has_a_bar() {
        let decision = |probabilities: &[f64]| Decision {
            probabilities: probabilities.to_vec(),
            label_mass: 0.9,
        };
        assert_eq!(
            table("fraud", &Question::predicate("Is it?"), &decision(&[0.25, 0.75])),
            "fraud: yes with 0.250 (label mass 0.900)\n  yes  0.250  ████████\n  no   0.750  ████████████████████████\n"
        );
        assert_eq!(
            table(
                "team",
                &Question::choice("Who?", ["cards", "loans"]),
                &decision(&[1.0, 0.0])
            ),
            "team: cards, confidence 1.000 (label mass 0.900)\n  cards  1.000  ████████████████████████████████\n  loans  0.000\n"
        );
        assert_eq!(
            table(
                "risk",
                &Question::score("How?", ["low", "high"]),
                &decision(&[0.5, 0.5])
            ),
            "risk: 0.50 of 0 to 1, confidence 0.000 (label mass 0.900)\n  0 low   0.500  ████████████████\n  1 high  0.500  ████████████████\n"
        );
    }
}
