//! `chat`: a conversation, turn by turn, through the model's chat template.
//!
//! This file has the turns; `chat/line.rs` parses the user's lines. Invariant: a turn that fails leaves the
//! conversation unchanged.

mod completion;
mod left_out;
mod line;
mod reader;
mod saved;
mod settings;
#[cfg(unix)]
mod stop_key;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use serde_json::{Map, Value, json};
use tokenmill::{Answer, Constraint, Model, TextParams, sessions::Session, text::EngineParams};
use tokenmill_backend::SamplingParams;
use tokenmill_sched::{EngineError, FinishReason};

use self::{
    left_out::LeftOut,
    line::{HELP, Line, command_without_slash, parse},
    reader::{LineReader, Read},
    saved::{Conversation, OwnFiles},
};
use crate::{
    adapters::AdapterArgs,
    companions,
    constraint::ConstraintArgs,
    context_shift::ContextShiftArgs,
    conversation::{self, ConversationArgs, check_template, with_system},
    echo::{Typed, Unechoed, restore_at_end},
    failure::Failure,
    input::read_text,
    interrupt::{self, Interrupt},
    kept_session::{KeptSession, SessionArgs, Unusable},
    load::LoadArgs,
    note::note,
    numbers::{Limit, counted},
    output,
    reply_view::ReplyView,
    sampling::SamplingArgs,
    session::{self, Report},
    speculation::SpeculationArgs,
    visible::visible,
    vision::{self, VisionArgs, read_image},
};

/// Talk with a model.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill chat demo\n  \
    tokenmill chat model.gguf --system \"Answer in one sentence.\"\n  \
    tokenmill chat demo --session talk.tms\n  \
    tokenmill chat demo --tools weather.json --temp 0\n  \
    echo \"What is 3 + 4?\" | tokenmill chat demo\n\n\
    While talking: /help lists the commands, /bye or Ctrl-D leaves, Ctrl-C stops an answer, and \"\"\" begins and ends a text of several lines.\n\
    A line that is only `help`, `?`, `exit`, `quit` or `bye` is not sent: a note names its command. \"\"\"exit\"\"\" sends the word.\n\
    Text typed while the model loads or answers is not shown; it begins the next message.\n\
    When messages come from a pipe, a command that fails is reported and skipped, and the first failure sets the exit code;\n\
    an answer that fails ends the chat.")]
pub(crate) struct Args {
    /// A GGUF file, a folder with one, a Hugging Face folder, OWNER/REPOSITORY[:TYPE] of the Hub, NAME:TAG of Ollama, or `demo`
    model: PathBuf,
    /// Tokens of an answer; -1 continues until the model ends or the context is full
    #[arg(short, long, value_name = "N", default_value_t = Limit::Unbounded)]
    n_predict: Limit,
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
    args.session.check_adapters(&args.adapters)?;
    args.session.check_gpus(&args.load)?;
    args.context_shift.check_session(&args.session)?;
    let tools = args.conversation.read_tools()?;
    let constraint = args.constraint.constraint()?;
    let wanted = companions::of_generating(&args.vision, &args.speculation, &args.load)?;
    let path = args.load.fetch.resolve_with(&args.model, wanted)?;
    // Ctrl-C restores the terminal.
    interrupt::ends_at_once()?;
    // Echoed text would tear the progress bar apart.
    let quiet = Unechoed::begin(Typed::Kept);
    let opened = open(args, &path, tools, constraint);
    if opened.is_err() {
        // The shell would take the typed text for a command.
        restore_at_end();
    }
    drop(quiet);
    let (model, mut chat) = opened?;
    let interrupt = Interrupt::install()?;
    let mut reader = LineReader::open()?;
    if reader.is_terminal() {
        note!("{} is ready. /help lists the commands.", visible(model.name()));
    }
    let mut left_out = LeftOut::default();
    loop {
        let text = match reader.read()? {
            Read::Text(text) => {
                if let Some(command) = command_without_slash(&text) {
                    let word = text.trim();
                    note!("[the command is {command}; \"\"\"{word}\"\"\" sends the word to the model]");
                    // A person has read it; a program that pipes its lines in sees the exit code.
                    if !reader.is_terminal() {
                        left_out.add(Failure::usage(format!("`{word}` is a command without its slash")));
                    }
                    continue;
                }
                text
            }
            Read::Quoted(text) => text,
            Read::Cancelled => {
                note!("[/bye or Ctrl-D leaves]");
                continue;
            }
            Read::End => return left_out.end(),
        };
        let line = parse(&text).and_then(|line| chat.check(&line).map(|()| line));
        let is_command = !matches!(line, Ok(Line::Say { .. } | Line::Regen));
        let result = match line {
            Ok(Line::Nothing) => Ok(()),
            Ok(Line::Bye) => return left_out.end(),
            Ok(line @ (Line::Say { .. } | Line::Regen)) => {
                interrupt.clear();
                let _quiet = Unechoed::begin(Typed::Kept);
                let result = match line {
                    Line::Say { role, text } => chat.turn(&model, role, &text, &interrupt),
                    _ => chat.again(&model, &interrupt),
                };
                // The press that stopped the answer has been handled; the next one counts as the first.
                interrupt.clear();
                result
            }
            Ok(command) => chat.command(&command, &model),
            Err(failure) => Err(failure),
        };
        if let Err(failure) = result {
            // A person can try again; a program that pipes its questions in sees the exit code.
            if !reader.is_terminal() && !is_command {
                return Err(failure);
            }
            note!("{}", failure.line());
            if !reader.is_terminal() {
                left_out.add(failure);
            }
        } else if let Err(failure) = chat.keep(&model) {
            if !reader.is_terminal() {
                return Err(failure);
            }
            note!("{}", failure.line());
        }
    }
}

/// Loads the model, and begins the conversation or takes up that of a session's file.
fn open(
    args: &Args,
    path: &Path,
    tools: Option<Value>,
    constraint: Option<Constraint>,
) -> Result<(Model, Chat), Failure> {
    let model = session::open(
        path,
        &args.load,
        &args.speculation,
        &args.adapters,
        &args.context_shift,
        1,
        &args.vision,
        &args.conversation.template,
    )?;
    if model.engine().limits().is_encoder {
        return Err(EngineError::PredictsNoTokens.into());
    }
    check_template(model.words())?;
    args.sampling.note_idle();
    let params = args.sampling.params(model.words(), model.n_ctx())?;
    let kept = args.session.open(&model, Unusable::GoesOn)?;
    let mut chat = Chat {
        system: args.conversation.system.clone(),
        messages: Vec::new(),
        tools,
        variables: Map::new(),
        attached: String::new(),
        images: Vec::new(),
        is_blind: args.vision.is_off(),
        encoder_hint: args
            .load
            .fetch
            .encoder_hint(&args.model)
            .filter(|_| !model.sees()),
        last: None,
        params,
        has_fixed_seed: args.sampling.has_fixed_seed(),
        n_predict: args.n_predict,
        reasoning_budget: args.conversation.reasoning_budget(),
        shows_reasoning: !args.conversation.hide_reasoning,
        adapter: args.adapters.only()?,
        constraint,
        computed: Vec::new(),
        kept,
        in_file: Vec::new(),
        own_files: OwnFiles::default(),
    };
    chat.resume()?;
    Ok((model, chat))
}

/// The hint for a full context.
const MAKE_ROOM: &str =
    "/drop forgets the oldest exchange, /undo the last, /clear all; -c N at the start gives more";

/// Whether the next exchanges may not fit any more.
fn is_nearly_full(n_tokens: usize, n_ctx: usize) -> bool {
    n_tokens < n_ctx && n_tokens * 5 >= n_ctx * 4
}

fn nothing_said() -> Failure {
    Failure::usage("nothing has been said yet")
}

/// A conversation and how it is held.
struct Chat {
    system: Option<String>,
    /// Turns so far, without the system message.
    messages: Vec<Value>,
    tools: Option<Value>,
    /// Variables for the template.
    variables: Map<String, Value>,
    /// Text of files, for the next message.
    attached: String,
    /// Images, for the next message.
    images: Vec<Value>,
    /// Whether images were switched off.
    is_blind: bool,
    /// How a model that does not see gets its encoder, where that is known.
    encoder_hint: Option<String>,
    /// The tokens and times of the last answer; `None` where the conversation does not end with it any more.
    last: Option<Report>,
    params: SamplingParams,
    has_fixed_seed: bool,
    n_predict: Limit,
    reasoning_budget: Limit,
    shows_reasoning: bool,
    adapter: Option<String>,
    /// The constraint on every answer.
    constraint: Option<Constraint>,
    /// Tokens of the last prompt and its answer.
    computed: Vec<u32>,
    /// The file that it is kept in, and the conversation as it stands there.
    kept: Option<KeptSession>,
    in_file: Vec<Value>,
    /// Files that it was saved to or loaded from.
    own_files: OwnFiles,
}

impl Chat {
    /// The whole conversation, the system message first.
    fn transcript(&self) -> Vec<Value> {
        with_system(self.system.as_deref(), &self.messages)
    }

    /// Continues the conversation of the session's file. A system message of the command line replaces that of the file.
    fn resume(&mut self) -> Result<(), Failure> {
        let Some(kept) = self.kept.as_ref().filter(|kept| !kept.notes.is_empty()) else {
            return Ok(());
        };
        let Conversation { system, messages } = Conversation::of_session(&kept.notes, kept.path())?;
        self.in_file = with_system(system.as_deref(), &messages);
        self.system = self.system.take().or(system);
        self.messages = messages;
        note!("[exchanges so far: {}]", self.n_exchanges());
        Ok(())
    }

    /// Saves a conversation that has changed in the session's file. One that waits for results of tools is saved when they are there.
    fn keep(&mut self, model: &Model) -> Result<(), Failure> {
        let messages = self.transcript();
        let is_whole = self.check_whole().is_ok();
        let has_begun = !self.messages.is_empty();
        let Some(kept) = &mut self.kept else {
            return Ok(());
        };
        if !is_whole || self.in_file == messages || (kept.notes.is_empty() && !has_begun) {
            return Ok(());
        }
        kept.notes = json!({"model": model.name(), "messages": messages})
            .to_string()
            .into_bytes();
        self.in_file = messages;
        kept.save(model, self.computed.clone())
    }

    /// Checks that a line has something to answer, before anything is computed for it.
    fn check(&self, line: &Line<'_>) -> Result<(), Failure> {
        match line {
            Line::Regen if (self.messages.last()).is_none_or(|last| last["role"] != "assistant") => {
                Err(Failure::usage("there is no answer yet"))
            }
            Line::Say { role: "tool", .. } if saved::open_calls(&self.messages).is_empty() => {
                Err(Failure::usage("no tool call is open; /tool answers one"))
            }
            _ => Ok(()),
        }
    }

    /// One message and the answer to it. Where the model called several tools, it answers once it has all results.
    fn turn(&mut self, model: &Model, role: &str, text: &str, interrupt: &Interrupt) -> Result<(), Failure> {
        let text = format!("{}{text}", self.attached);
        let images = if role == "user" { &self.images[..] } else { &[] };
        let mut message = json!({"role": role, "content": vision::content(images, &text)});
        let mut open = saved::open_calls(&self.messages).into_iter();
        if role == "tool" {
            let call = open.next().expect("`check` found an open call");
            message["tool_call_id"] = call["id"].clone();
            message["name"] = call["function"]["name"].clone();
        } else {
            // The first result was given, so the answer waits for the others.
            self.check_whole()?;
        }
        self.messages.push(message);
        if let Some(next) = open.next().filter(|_| role == "tool") {
            self.attached.clear();
            note!(
                "[/tool answers the call of {} next]",
                visible(next["function"]["name"].as_str().unwrap_or_default())
            );
            return Ok(());
        }
        match self.answer(model, interrupt) {
            Ok(answer) => {
                self.attached.clear();
                if role == "user" {
                    self.images.clear();
                }
                self.messages.push(answer.to_message());
                Ok(())
            }
            Err(failure) => {
                self.messages.pop();
                Err(failure)
            }
        }
    }

    /// Checks that no exchange waits for results of tools.
    fn check_whole(&self) -> Result<(), Failure> {
        match saved::open_calls(&self.messages).first() {
            Some(call) if self.messages.last().is_some_and(|last| last["role"] == "tool") => {
                let name = visible(call["function"]["name"].as_str().unwrap_or_default());
                Err(
                    Failure::usage(format!("the model waits for the result of {name} too"))
                        .hint("/tool TEXT gives it, /undo takes the exchange back"),
                )
            }
            _ => Ok(()),
        }
    }

    /// Another answer to the last message.
    fn again(&mut self, model: &Model, interrupt: &Interrupt) -> Result<(), Failure> {
        let before = (self.messages).pop_if(|message| message["role"] == "assistant");
        let before = before.expect("`check` found an answer");
        let result = self.answer(model, interrupt);
        self.messages.push(match &result {
            Ok(answer) => answer.to_message(),
            Err(_) => before,
        });
        result.map(|_| ())
    }

    fn answer(&mut self, model: &Model, interrupt: &Interrupt) -> Result<Answer, Failure> {
        let mut prompt =
            conversation::prompt(model, self.transcript(), self.tools.as_ref(), &self.variables)?;
        let shift = model.engine().config().context_shift;
        if let Some(shift) = shift {
            let n_dropped = prompt.cut(shift, model.n_ctx());
            if n_dropped > 0 {
                note!("[the context is full: the oldest {n_dropped} tokens were dropped]");
            }
        }
        let ids = &prompt.tokens;
        if ids.len() >= model.n_ctx() {
            let (n_tokens, n_ctx) = (ids.len(), model.n_ctx());
            let message = format!(
                "the conversation has {n_tokens} tokens with this message, which leaves no room in a context of {n_ctx}"
            );
            return Err(Failure::input(message).hint(MAKE_ROOM));
        }
        let begun = Instant::now();
        let Some(prompt) = model.see_while(prompt, 0, &|| !interrupt.is_pressed())? else {
            return Err(Failure::input("stopped before all images were read"));
        };
        let image_time = begun.elapsed();
        let ids = &prompt.tokens;
        let params = TextParams {
            sampling: self.params.clone(),
            max_tokens: self.n_predict.max_tokens(),
            constraint: (model.words()).held_to(
                &prompt,
                self.constraint.clone(),
                self.reasoning_budget.max_tokens(),
            )?,
            adapter: self.adapter.clone(),
            engine: EngineParams {
                reader: prompt.reader.clone(),
                media: Arc::clone(&prompt.media),
                ..EngineParams::default()
            },
            ..TextParams::default()
        };
        let mut view = ReplyView::new(self.shows_reasoning);
        let answers = session::generate(model, ids, &params, interrupt, &mut |piece| view.show(piece));
        view.finish()?;
        let [answer] = <[_; 1]>::try_from(answers?).expect("one sample was asked for");
        self.computed = Session::of(ids, &answer).tokens;
        let report = Report::new(&answer, params.max_tokens).after_images(image_time, &prompt);
        match answer.finish {
            FinishReason::Stop => {}
            FinishReason::Cancelled => note!("[stopped]"),
            FinishReason::Length => match report.cut_at {
                Some(n) => note!("[cut at the limit of {n} tokens; /set n_predict -1 lifts it]"),
                None => note!(
                    "[cut where the context of {} tokens ends; {MAKE_ROOM}]",
                    model.n_ctx()
                ),
            },
        }
        if answer.usage.dropped_tokens > 0 {
            let n_dropped = answer.usage.dropped_tokens;
            note!("[the context was full: {n_dropped} more tokens were dropped]");
        }
        self.last = Some(report);
        let (n_tokens, n_ctx) = (report.n_tokens(), model.n_ctx());
        if shift.is_none() && is_nearly_full(n_tokens, n_ctx) {
            note!("[the conversation takes {n_tokens} of {n_ctx} tokens; {MAKE_ROOM}]");
        }
        if !self.has_fixed_seed {
            self.params.seed = self.params.seed.wrapping_add(1);
        }
        if !answer.calls.is_empty() && answer.finish == FinishReason::Stop {
            note!("[/tool TEXT answers the call]");
        }
        Ok(answer)
    }

    /// A command other than those that end or speak.
    fn command(&mut self, command: &Line<'_>, model: &Model) -> Result<(), Failure> {
        match command {
            Line::Help => output::print_wrapped(HELP),
            Line::Clear => {
                self.messages.clear();
                self.attached.clear();
                self.images.clear();
                self.last = None;
                Ok(())
            }
            Line::Undo if !self.images.is_empty() || !self.attached.is_empty() => {
                self.images.clear();
                self.attached.clear();
                note!("[the images and files for the next message are removed]");
                Ok(())
            }
            Line::Undo => {
                let n_kept = saved::starts(&self.messages).last().copied();
                self.messages.truncate(n_kept.ok_or_else(nothing_said)?);
                self.last = None;
                note!("[the last exchange is forgotten; {}]", self.exchanges_left());
                Ok(())
            }
            Line::Drop => {
                let starts = saved::starts(&self.messages);
                let n_dropped = starts.get(1).copied().unwrap_or(self.messages.len());
                starts.first().ok_or_else(nothing_said)?;
                self.messages.drain(..n_dropped);
                self.last = None;
                note!("[the oldest exchange is forgotten; {}]", self.exchanges_left());
                Ok(())
            }
            Line::File(path) => {
                let text = read_text(path)?;
                note!(
                    "[{}, {}, goes with the next message]",
                    path.display(),
                    counted(text.lines().count(), "line")
                );
                self.attached.push_str(&text);
                if !text.ends_with('\n') {
                    self.attached.push('\n');
                }
                self.attached.push('\n');
                Ok(())
            }
            Line::Image(path) => {
                if !model.sees() {
                    let failure = vision::refusal(model, self.encoder_hint.clone());
                    return Err(if self.is_blind {
                        failure.hint("leave out `--no-mmproj`")
                    } else {
                        failure
                    });
                }
                self.images.push(read_image(path)?);
                note!("[{} goes with the next message]", path.display());
                Ok(())
            }
            Line::Save(path) => {
                self.check_whole()?;
                let text = format!("{:#}\n", json!({"messages": self.transcript()}));
                self.own_files.write(path, &text)?;
                note!("[saved to {}]", path.display());
                Ok(())
            }
            Line::Load(path) => {
                let Conversation { system, messages } = Conversation::read(path)?;
                self.own_files.add(path);
                (self.system, self.messages) = (system, messages);
                self.last = None;
                note!(
                    "[{} loaded from {}]",
                    counted(self.n_exchanges(), "exchange"),
                    path.display()
                );
                Ok(())
            }
            Line::Stats => {
                let last = self.last.ok_or_else(|| {
                    if self.messages.is_empty() {
                        nothing_said()
                    } else {
                        Failure::usage(
                            "nothing has been answered since the conversation was changed or loaded",
                        )
                    }
                })?;
                note!(
                    "{}\n[the context holds {} of {} tokens]",
                    last.line(),
                    last.n_tokens(),
                    model.n_ctx()
                );
                Ok(())
            }
            Line::Set { name, value } => self.set(name, value, model),
            Line::Show(what) => self.show(what, model),
            Line::Nothing | Line::Bye | Line::Say { .. } | Line::Regen => Ok(()),
        }
    }

    fn n_exchanges(&self) -> usize {
        saved::starts(&self.messages).len()
    }

    /// The number of exchanges after some were forgotten, in words.
    fn exchanges_left(&self) -> String {
        match self.n_exchanges() {
            1 => "1 is left".to_owned(),
            n => format!("{n} are left"),
        }
    }
}
