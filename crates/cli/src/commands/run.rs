//! `run`: answers a prompt, or continues it.

use std::{
    io::{self, IsTerminal},
    path::PathBuf,
    sync::Arc,
    time::Instant,
};

use serde_json::{Map, Value, json};
use tokenmill::{
    Answer, Constraint, Model, TextParams, ToolCall,
    load::ModelSource,
    sessions::Session,
    text::{EngineParams, Prompt},
};
use tokenmill_sched::{FinishReason, MAX_SAMPLES};
use tokenmill_text::EncodeOptions;

use crate::{
    adapters::AdapterArgs,
    companions,
    constraint::ConstraintArgs,
    context_shift::ContextShiftArgs,
    conversation::{self, ConversationArgs, check_template, with_system},
    echo::{Typed, Unechoed},
    failure::Failure,
    help::ADVANCED,
    input::{has_unread_stdin, read_stdin, read_text},
    interrupt::Interrupt,
    kept_session::{SessionArgs, Unusable},
    load::LoadArgs,
    note::note,
    numbers::Limit,
    output,
    reply_view::ReplyView,
    sampling::SamplingArgs,
    session::{self, Report, finish_name, line_of_all},
    speculation::SpeculationArgs,
    swapped::refuse_prompt_as_model,
    vision::{self, VisionArgs, read_image},
};

/// Answer a prompt through the model's chat template, or continue it where there is none.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill run demo \"What is 3 + 4?\"\n  \
    tokenmill run demo \"Once upon a time\" --raw\n  \
    tokenmill run demo \"Once upon a time\" --raw --temp 0 -n 48\n  \
    tokenmill run demo \"Once upon a time\" --raw --parallel 4 -n 48\n  \
    tokenmill run demo \"Ada was born in \" --raw --no-echo --regex \"1[0-9]{3}\"\n  \
    tokenmill run gemma-3-4b.gguf \"What is this?\" --image photo.jpg\n  \
    tokenmill run model.gguf --raw --file book.txt --session book.tms -n 100\n  \
    cat question.txt | tokenmill run model.gguf --stop '\\n\\n' --json\n\n\
    An answer with a shape (--json-schema, --regex, --grammar) that -n or the context cuts is printed up to the cut, and the exit\n\
    code is 7.")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Args {
    /// A GGUF file, a folder with one, a Hugging Face folder, OWNER/REPOSITORY[:TYPE] of the Hub, NAME:TAG of Ollama, or `demo`
    model: PathBuf,
    /// The prompt; read from standard input if neither PROMPT nor --file is given
    #[arg(conflicts_with = "file")]
    prompt: Option<String>,
    /// The prompt, in place of PROMPT, as llama.cpp's command lines have it
    #[arg(id = "prompt-option", short, long = "prompt", value_name = "TEXT", conflicts_with_all = ["prompt", "file"])]
    prompt_option: Option<String>,
    /// Read the prompt from a file
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Tokens to generate; -1 continues until the model ends or the context is full
    #[arg(short, long, value_name = "N", default_value_t = Limit::Unbounded)]
    n_predict: Limit,
    /// Samples to generate from one prompt in one batch; sample i uses the seed plus i [short: -np]
    #[arg(long, value_name = "N", default_value_t = 1)]
    parallel: u32,
    /// End the text before this string, in which \n and \t are read as in C; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Continue the prompt unchanged, even if the model has a chat template
    #[arg(long, visible_alias = "no-conversation")]
    raw: bool,
    /// Send the prompt as a user message through the chat template, or fail if there is none; --system, --tools, --template
    /// and --reasoning-budget imply it
    #[arg(long, alias = "conversation", conflicts_with = "raw")]
    chat: bool,
    /// Show the model an image, before the prompt; may be repeated, and implies --chat
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Parse control tokens in the prompt, such as <|im_end|>; implies --raw
    #[arg(long, help_heading = ADVANCED)]
    special: bool,
    /// Print only the generated text, not the prompt before it; a conversation's prompt is never printed
    #[arg(long, alias = "no-display-prompt", conflicts_with = "json")]
    no_echo: bool,
    /// Print one JSON object when the text is complete
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    conversation: ConversationArgs,
    #[command(flatten)]
    constraint: ConstraintArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    context_shift: ContextShiftArgs,
    #[command(flatten)]
    vision: VisionArgs,
    #[command(flatten)]
    load: LoadArgs,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // A model that is not there is said before a prompt is waited for.
    let wanted = companions::of_generating(&args.vision, &args.speculation, &args.load)?;
    let path = args.load.fetch.resolve_with(&args.model, wanted)?;
    let source = ModelSource::find(&path)?;
    source.check()?;
    refuse_prompt_as_model(source.path())?;
    let prompt = match (args.prompt.as_ref().or(args.prompt_option.as_ref()), &args.file) {
        (Some(prompt), _) => prompt.clone(),
        (None, Some(file)) => read_text(file)?,
        (None, None) if io::stdin().is_terminal() => {
            return Err(Failure::usage("there is no prompt")
                .hint("write it after the model, pipe it in, or talk with `tokenmill chat`"));
        }
        (None, None) => read_stdin()?,
    };
    if prompt.is_empty() {
        return Err(Failure::input("the prompt is empty").hint("there must be something to continue"));
    }
    if !(1..=MAX_SAMPLES).contains(&args.parallel) {
        return Err(Failure::usage(format!(
            "`{}` is not a value for `--parallel`: expected a whole number from 1 to {MAX_SAMPLES}",
            args.parallel
        )));
    }
    if args.session.is_given() && args.parallel > 1 {
        return Err(Failure::usage(
            "`--session` keeps one answer, but `--parallel` requests several",
        ));
    }
    args.session.check_adapters(&args.adapters)?;
    args.session.check_gpus(&args.load)?;
    args.context_shift.check_session(&args.session)?;
    if args.stop.iter().any(String::is_empty) {
        return Err(
            Failure::usage("`--stop` is empty, which would end every text before it begins")
                .hint("give the text to stop at, or leave it out"),
        );
    }
    let asks_chat = args.chat || args.conversation.is_given() || !args.image.is_empty();
    if asks_chat && args.raw {
        return Err(
            Failure::usage("`--raw` cannot be combined with the options of a conversation").hint(
                "leave `--raw` out, or `--system`, `--tools`, `--template`, `--reasoning` and `--image`",
            ),
        );
    }
    if asks_chat && args.special {
        return Err(
            Failure::usage("`--special` does not go with a message of a conversation")
                .hint("control tokens come from the chat template; leave `--special` out"),
        );
    }
    if (args.raw || args.special) && args.conversation.hide_reasoning {
        return Err(Failure::usage(
            "`--hide-reasoning` needs a conversation: a text that is continued is shown as it is",
        )
        .hint("leave `--raw` and `--special` out, or `--hide-reasoning`"));
    }
    if args.vision.is_off() && !args.image.is_empty() {
        return Err(Failure::usage(
            "`--image` and `--no-mmproj` contradict each other",
        ));
    }
    let constraint = args.constraint.constraint()?;
    let has_shape = constraint.is_some();
    let adapter = args.adapters.only()?;
    let tools = args.conversation.read_tools()?;
    let images = args.image.iter().map(|path| read_image(path));
    let images = images.collect::<Result<Vec<_>, _>>()?;
    let model = session::open(
        &path,
        &args.load,
        &args.speculation,
        &args.adapters,
        &args.context_shift,
        args.parallel,
        &args.vision.with_images(!images.is_empty()),
        &args.conversation.template,
    )?;
    let tokenizer = model.words().tokenizer();
    args.sampling.note_idle();
    let sampling = args.sampling.params(model.words(), model.n_ctx())?;
    let seed = sampling.seed;
    let kept = args.session.open(&model, Unusable::Stays)?;
    let interrupt = Interrupt::install()?;
    // A model with a template expects chat messages.
    let has_template = model.words().template().is_some() && !model.engine().limits().is_encoder;
    let is_chat = asks_chat || (has_template && !args.raw && !args.special);
    if let Some(error) = model.words().template_error().filter(|_| !is_chat && !args.raw) {
        note!("the model's chat template cannot be used, so the prompt is continued: {error}");
    }
    let asked = if is_chat {
        check_template(model.words())?;
        if !images.is_empty() && !model.sees() {
            return Err(vision::refusal(&model, args.load.fetch.encoder_hint(&args.model)));
        }
        // A pipe and a file end with a line break that belongs to no message.
        let content = prompt
            .strip_suffix('\n')
            .map_or(prompt.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
        let message = json!({"role": "user", "content": vision::content(&images, content)});
        let messages = with_system(args.conversation.system.as_deref(), &[message]);
        conversation::prompt(&model, messages, tools.as_ref(), &Map::new())?
    } else {
        let options = EncodeOptions {
            parse_special: args.special,
            ..EncodeOptions::default()
        };
        Prompt::of_text(tokenizer.encode(&prompt, options))
    };
    if (args.prompt.is_some() || args.prompt_option.is_some() || args.file.is_some()) && has_unread_stdin() {
        note!(
            "standard input is not read, since there is a prompt (hint: leave the prompt out, or write `\"Summarize: $(cat FILE)\"`)"
        );
    }
    let _quiet = Unechoed::begin(Typed::Dropped);
    let begun = Instant::now();
    let asked = model.see(asked, 0)?;
    let image_time = begun.elapsed();
    let prompt_ids = &asked.tokens;
    if let Some(kept) = &kept {
        kept.note_other(prompt_ids);
    }
    let stops = args.stop.iter().map(|stop| unescape(stop)).collect();
    let params = TextParams {
        sampling,
        max_tokens: args.n_predict.max_tokens(),
        stops,
        n: args.parallel,
        constraint: if is_chat {
            let budget = args.conversation.reasoning_budget().max_tokens();
            model.words().held_to(&asked, constraint, budget)?
        } else {
            constraint
        },
        adapter,
        engine: EngineParams {
            reader: asked.reader.clone(),
            media: Arc::clone(&asked.media),
            ..EngineParams::default()
        },
        ..TextParams::default()
    };
    // Samples that come side by side are shown one after the other, when all are complete.
    let streams = !args.json && args.parallel == 1;
    let mut is_first = true;
    let mut is_shown = false;
    let mut view = ReplyView::new(!args.conversation.hide_reasoning);
    let answers = session::generate(&model, prompt_ids, &params, &interrupt, &mut |piece| {
        if !streams {
            return Ok(());
        }
        if is_chat {
            is_shown = true;
            return view.show(piece);
        }
        // The prompt is shown once it is known to have been accepted.
        if std::mem::take(&mut is_first) && !args.no_echo {
            output::print(&prompt)?;
        }
        output::print_generated(&piece.text)
    });
    // The last word and the end of the line, also where the rest failed.
    if is_chat && streams && (is_shown || answers.is_ok()) {
        view.finish()?;
    }
    let answers = answers?;
    let report = |answer: &Answer| Report::new(answer, params.max_tokens).after_images(image_time, &asked);
    if args.json {
        let mut reply = json!({
            "model": model.name(),
            "prompt": prompt,
            "prompt_ids": prompt_ids,
            "seed": seed,
        });
        let head = reply.as_object_mut().expect("an object was just written");
        match &answers[..] {
            [answer] => head.extend(to_json(answer, report(answer), is_chat)),
            answers => {
                let seeds = (0..).map(|sample| seed.wrapping_add(sample));
                let samples = seeds.zip(answers).map(|(seed, answer)| {
                    let mut sample = to_json(answer, report(answer), is_chat);
                    sample.insert("seed".to_owned(), seed.into());
                    Value::from(sample)
                });
                head.insert("samples".to_owned(), samples.collect());
            }
        }
        output::print_json(&reply)?;
    } else if streams && !is_chat {
        // Where nothing was generated, the prompt has not been shown yet.
        let echo = if is_first && !args.no_echo { &prompt } else { "" };
        output::print(&format!("{echo}\n"))?;
    } else if !streams {
        let echo = if args.no_echo || is_chat { "" } else { &prompt };
        for (sample, answer) in (1..).zip(&answers) {
            output::print(&format!("--- {sample} of {}\n{echo}", answers.len()))?;
            if is_chat {
                view.show_whole(answer)?;
                view.finish()?;
            } else {
                output::print_generated(&format!("{}\n", answer.text))?;
            }
        }
    }
    match &answers[..] {
        [answer] => note!("{}", report(answer).line()),
        answers => {
            let reports: Vec<_> = answers.iter().map(report).collect();
            note!("{}", line_of_all(&reports));
        }
    }
    if let (Some(kept), [answer]) = (&kept, &answers[..]) {
        kept.save(&model, Session::of(prompt_ids, answer).tokens)?;
    }
    if (answers.iter()).any(|answer| answer.finish == FinishReason::Cancelled) {
        return Err(Failure::interrupted());
    }
    match &params.constraint {
        Some(shape) if has_shape => check_whole(&model, shape, &answers, params.max_tokens),
        _ => Ok(()),
    }
}

/// Fails if a limit cut an answer before it satisfied its constraint, so that no program takes a part for the whole.
fn check_whole(
    model: &Model,
    shape: &Constraint,
    answers: &[Answer],
    max_tokens: Option<u32>,
) -> Result<(), Failure> {
    let mut n_cut = 0;
    for answer in answers
        .iter()
        .filter(|answer| answer.finish == FinishReason::Length)
    {
        let ids: Vec<u32> = answer.tokens.iter().map(|token| token.id).collect();
        n_cut += usize::from(!model.words().is_whole(shape, &ids)?);
    }
    let which = match (n_cut, answers.len()) {
        (0, _) => return Ok(()),
        (_, 1) => "the answer was cut before its shape was complete".to_owned(),
        (n_cut, n) => format!("{n_cut} of {n} answers were cut before their shape was complete"),
    };
    let is_limited = max_tokens.is_some_and(|maximum| {
        let lengths = answers.iter().map(|answer| answer.usage.completion_tokens);
        lengths.max().unwrap_or(0) >= maximum as usize
    });
    Err(Failure::cut_shape(which).hint(if is_limited {
        "a larger `-n` lets it be longer"
    } else {
        "the context is full; a larger `-c` lets it be longer"
    }))
}

/// An answer for programs; one of a conversation has its reasoning and its calls.
fn to_json(answer: &Answer, report: Report, is_chat: bool) -> Map<String, Value> {
    let ids: Vec<u32> = answer.tokens.iter().map(|token| token.id).collect();
    let fields = [
        ("text", json!(answer.text)),
        ("ids", json!(ids)),
        ("finish_reason", json!(finish_name(answer.finish))),
        ("timings", report.to_json()),
    ];
    let of_chat = [
        ("reasoning", json!(answer.reasoning)),
        (
            "tool_calls",
            (answer.calls.iter().chain(&answer.cut_call))
                .map(ToolCall::to_openai)
                .collect(),
        ),
    ];
    let of_chat = of_chat.into_iter().filter(|_| is_chat);
    (fields.into_iter().chain(of_chat))
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Resolves `\n`, `\t`, `\r` and `\\`, which a shell makes hard to type.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('\\') | None => out.push('\\'),
            Some(other) => out.extend(['\\', other]),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_strings_may_hold_escapes() {
        assert_eq!(unescape(r"a\nb\\n\q\"), "a\nb\\n\\q\\");
    }
}
