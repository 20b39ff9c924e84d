//! `--mix`: streams of several kinds side by side, the latency of each kind, and the cost of the mix against
//! plain streams.
//!
//! Unlike in the load of completions, each client sends chats of one kind. Invariant: answers of all kinds
//! have the same number of tokens, so that loads compare; schemas of constrained answers ask for more than
//! fits.

use std::{
    fmt::Write as _,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    client::{Measured, Target, measure},
    report::{Distribution, gaps, times_between},
};
use crate::{note::note, signals::Signals};

/// The path for chats.
const CHAT: &str = "/v1/chat/completions";

/// The kind of a stream's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Text.
    Plain,
    /// An answer held to a JSON schema.
    Json,
    /// Calls of a tool, which are required.
    Tools,
    /// Reasoning with a budget, then text.
    Reasoning,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Plain, Self::Json, Self::Tools, Self::Reasoning];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Json => "json",
            Self::Tools => "tools",
            Self::Reasoning => "reasoning",
        }
    }
}

/// Streams by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mix(Vec<(Kind, u16)>);

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut streams: Vec<(Kind, u16)> = Vec::new();
        for part in text.split(',') {
            let (name, n) = part.split_once('=').unwrap_or((part, "1"));
            let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
            let kind = kind.ok_or_else(|| format!("`{name}` is none of plain, json, tools and reasoning"))?;
            let n = n.parse().ok().filter(|&n| n > 0);
            let n = n.ok_or_else(|| format!("`{part}` has no number of streams from 1 to 65535"))?;
            if streams.iter().any(|&(other, _)| other == kind) {
                return Err(format!("`{name}` is given twice"));
            }
            streams.push((kind, n));
        }
        Ok(Self(streams))
    }
}

impl Mix {
    /// As many streams, all plain.
    fn plain(&self) -> Self {
        Self(vec![(
            Kind::Plain,
            self.n_streams().try_into().unwrap_or(u16::MAX),
        )])
    }

    /// The kind of each stream.
    fn streams(&self) -> Vec<Kind> {
        let streams = self.0.iter();
        streams.flat_map(|&(kind, n)| (0..n).map(move |_| kind)).collect()
    }

    /// Streams of all kinds.
    pub(super) fn n_streams(&self) -> u32 {
        self.0.iter().map(|&(_, n)| u32::from(n)).sum()
    }

    /// One stream of each kind, and a plain one.
    pub(super) fn one_of_each(&self) -> Self {
        let others = self.kinds().filter(|&kind| kind != Kind::Plain);
        Self(
            std::iter::once(Kind::Plain)
                .chain(others)
                .map(|kind| (kind, 1))
                .collect(),
        )
    }

    /// The kinds.
    pub(super) fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.0.iter().map(|&(kind, _)| kind)
    }
}

/// How a mix is run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) mix: Mix,
    /// Requests start until then.
    pub(super) until: Bound,
    /// Tokens of an answer.
    pub(super) max_tokens: u32,
    /// Whether a line is printed each second.
    pub(super) is_live: bool,
}

/// How long a run is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    Time(Duration),
    /// Requests of each stream.
    Requests(u32),
}

/// The results of a run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) wall: Duration,
    pub(super) measured: Vec<(Kind, Measured)>,
    /// Whether it was not interrupted.
    pub(super) is_whole: bool,
}

/// The pieces that the streams of a kind received since the last line.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    n_pieces: u32,
    longest: Duration,
}

/// The body of a chat of a kind. `words` is the message; the answer would be longer than `max_tokens` if it might.
pub(super) fn body(kind: Kind, model: &str, words: &str, max_tokens: u32, seed: u64) -> String {
    let row = json!({"type": "object", "additionalProperties": false, "required": ["name", "count", "is_known"],
        "properties": {"name": {"type": "string", "maxLength": 24}, "count": {"type": "integer", "minimum": 0, "maximum": 9999},
            "is_known": {"type": "boolean"}}});
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["rows"],
        "properties": {"rows": {"type": "array", "items": row, "minItems": max_tokens}}});
    let mut body = json!({
        "model": model,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": max_tokens,
        "temperature": 1,
        "seed": seed,
        "stream": true,
        "stream_options": {"include_usage": true},
        // Token ids distinguish a gap in the text from a gap between tokens.
        "return_token_ids": true,
    });
    match kind {
        Kind::Plain => body["ignore_eos"] = true.into(),
        Kind::Json => {
            body["response_format"] =
                json!({"type": "json_schema", "json_schema": {"name": "rows", "schema": schema}});
        }
        Kind::Tools => {
            let function = json!({"name": "record", "description": "Records rows.", "parameters": schema});
            body["tools"] = json!([{"type": "function", "function": function}]);
            body["tool_choice"] = "required".into();
        }
        Kind::Reasoning => {
            body["ignore_eos"] = true.into();
            body["thinking_budget"] = (max_tokens / 2).max(1).into();
        }
    }
    body.to_string()
}

/// Runs all streams to their end, or to Ctrl-C. `words` makes the message of a request of its number.
pub(super) async fn run(
    target: &Arc<Target>,
    plan: &Plan,
    presses: &mut Signals,
    first: u64,
    words: impl Fn(u64) -> String + Clone + Send + 'static,
) -> Run {
    let began = Instant::now();
    let live: Arc<Mutex<[Live; Kind::ALL.len()]>> = Arc::default();
    let (send, mut ended) = mpsc::unbounded_channel();
    let mut clients = JoinSet::new();
    for (client, kind) in plan.mix.streams().into_iter().enumerate() {
        let (target, live, words, ended) =
            (Arc::clone(target), Arc::clone(&live), words.clone(), send.clone());
        let (bound, max_tokens) = (plan.until, plan.max_tokens);
        clients.spawn(async move {
            for turn in 0.. {
                let is_over = match bound {
                    Bound::Time(time) => began.elapsed() >= time,
                    Bound::Requests(n) => turn >= n,
                };
                if is_over {
                    return;
                }
                let number = first + ((client as u64) << 20) + u64::from(turn);
                let body = body(kind, target.model(), &words(number), max_tokens, number);
                let mut on_gap = |gap: Duration| {
                    let mut live = live.lock().unwrap_or_else(PoisonError::into_inner);
                    let of = &mut live[kind as usize];
                    of.n_pieces += 1;
                    of.longest = of.longest.max(gap);
                };
                let one = measure(&target, CHAT, &body, began.elapsed(), &mut on_gap).await;
                let has_failed = one.error.is_some();
                // After an interrupted run there is no receiver any more.
                if ended.send((kind, one)).is_err() || has_failed {
                    return;
                }
            }
        });
    }
    drop(send);
    let mut measured = Vec::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.tick().await;
    let is_whole = loop {
        tokio::select! {
            one = ended.recv() => match one {
                Some(one) => measured.push(one),
                None => break true,
            },
            () = presses.next() => break false,
            _ = ticks.tick(), if plan.is_live => {
                let now = std::mem::take(&mut *live.lock().unwrap_or_else(PoisonError::into_inner));
                note!("{}", live_line(began.elapsed(), &plan.mix, &now));
            }
        }
    };
    Run {
        wall: began.elapsed(),
        measured,
        is_whole,
    }
}

fn live_line(elapsed: Duration, mix: &Mix, now: &[Live]) -> String {
    let mut line = format!("{:4} s", elapsed.as_secs());
    for kind in mix.kinds() {
        let of = now[kind as usize];
        let longest_ms = of.longest.as_secs_f64() * 1e3;
        let _ = write!(
            line,
            "  {}: {} pieces, longest gap {longest_ms:.0} ms",
            kind.name(),
            of.n_pieces
        );
    }
    line
}

impl Run {
    /// Tokens of all answers in a second.
    pub(super) fn tokens_per_s(&self) -> f64 {
        let n_tokens: u64 = self.measured.iter().map(|(_, one)| one.completion_tokens).sum();
        n_tokens as f64 / self.wall.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    pub(super) fn first_error(&self) -> Option<&str> {
        self.measured.iter().find_map(|(_, one)| one.error.as_deref())
    }

    /// The gaps between the pieces of the answers of a kind, in milliseconds.
    fn gaps_ms(&self, kind: Kind) -> Distribution {
        let of_kind = self.measured.iter().filter(|&&(other, _)| other == kind);
        Distribution::new(of_kind.flat_map(|(_, one)| gaps(one)).collect())
    }

    fn figures(&self, mix: &Mix) -> Vec<(Kind, Figures)> {
        let figures = |kind| {
            let of_kind: Vec<&Measured> = (self.measured.iter())
                .filter(|&&(other, _)| other == kind)
                .map(|(_, one)| one)
                .collect();
            let gaps = self.gaps_ms(kind);
            Figures {
                n_answers: of_kind.iter().filter(|one| one.error.is_none()).count(),
                n_tokens: of_kind.iter().map(|one| one.completion_tokens).sum(),
                p50_ms: gaps.percentile(50.0),
                p99_ms: gaps.percentile(99.0),
                longest_ms: gaps.percentile(100.0),
                tokens_in_longest: tell_tokens(&of_kind).then(|| {
                    (of_kind.iter())
                        .filter_map(|one| longest_gap(one))
                        .max_by(by_time)
                        .map_or(0, |gap| gap.1)
                }),
                between_tokens_ms: between_tokens(&of_kind),
            }
        };
        mix.kinds().map(|kind| (kind, figures(kind))).collect()
    }

    /// For people.
    pub(super) fn table(&self, mix: &Mix) -> String {
        let figures = self.figures(mix);
        let mut table = format!(
            "{} streams for {:.1} s: {:.1} tokens/s in answers\n\n\
             | streams | answers | tokens | gap p50 ms | gap p99 ms | longest gap ms | tokens in it | longest between tokens ms |\n\
             |---|---|---|---|---|---|---|---|\n",
            mix.n_streams(),
            self.wall.as_secs_f64(),
            self.tokens_per_s(),
        );
        for (kind, of) in &figures {
            let _ = writeln!(
                table,
                "| {} | {} | {} | {:.2} | {:.2} | {:.2} | {} | {} |",
                kind.name(),
                of.n_answers,
                of.n_tokens,
                of.p50_ms,
                of.p99_ms,
                of.longest_ms,
                (of.tokens_in_longest).map_or_else(|| "?".to_owned(), |n| n.to_string()),
                (of.between_tokens_ms).map_or_else(|| "?".to_owned(), |ms| format!("{ms:.2}")),
            );
        }
        let worst = figures
            .iter()
            .max_by(|a, b| a.1.stall_ms().total_cmp(&b.1.stall_ms()));
        if let Some((kind, worst)) = worst {
            let _ = write!(
                table,
                "\nlongest stall: {:.2} ms, of {}",
                worst.stall_ms(),
                kind.name()
            );
            let plain = figures.iter().find(|(kind, _)| *kind == Kind::Plain);
            let _ = match plain {
                Some((_, plain)) => writeln!(table, "; p99 of the plain streams: {:.2} ms", plain.p99_ms),
                None => writeln!(table),
            };
        }
        if let Some(error) = self.first_error() {
            let _ = writeln!(table, "\nfirst failure: {error}");
        }
        table
    }

    /// For programs.
    pub(super) fn to_json(&self, mix: &Mix) -> Value {
        let of_kind = |(kind, of): &(Kind, Figures)| {
            let figures = json!({"answers": of.n_answers, "tokens": of.n_tokens, "gap_p50_ms": of.p50_ms,
                "gap_p99_ms": of.p99_ms, "longest_gap_ms": of.longest_ms, "tokens_in_longest_gap": of.tokens_in_longest,
                "longest_between_tokens_ms": of.between_tokens_ms});
            (kind.name().to_owned(), figures)
        };
        json!({
            "wall_s": self.wall.as_secs_f64(),
            "tokens_per_s": self.tokens_per_s(),
            "kinds": self.figures(mix).iter().map(of_kind).collect::<serde_json::Map<_, _>>(),
            "first_failure": self.first_error(),
        })
    }
}

/// The latencies of the streams of a kind.
#[derive(Debug)]
struct Figures {
    n_answers: usize,
    n_tokens: u64,
    p50_ms: f64,
    p99_ms: f64,
    longest_ms: f64,
    /// The tokens that arrived during the longest gap, up to and including its end. More than one means that
    /// text was held back because a character or a mark was incomplete. `None` if the server reports no
    /// tokens.
    tokens_in_longest: Option<usize>,
    /// The longest time between two tokens; `None` if the server does not report tokens.
    between_tokens_ms: Option<f64>,
}

impl Figures {
    /// The longest time for which a stream stood still: no token came, or where these are not told, no text.
    fn stall_ms(&self) -> f64 {
        self.between_tokens_ms.unwrap_or(self.longest_ms)
    }
}

/// The longest gap between the pieces of an answer, and the tokens that came in it.
fn longest_gap(one: &Measured) -> Option<(Duration, usize)> {
    let gaps = one.pieces.windows(2).map(|pair| {
        let came = |token: &&Duration| (pair[0] < **token) && (**token <= pair[1]);
        (
            pair[1].saturating_sub(pair[0]),
            one.tokens.iter().filter(came).count(),
        )
    });
    gaps.max_by(by_time)
}

fn by_time(a: &(Duration, usize), b: &(Duration, usize)) -> std::cmp::Ordering {
    a.0.cmp(&b.0)
}

/// Whether all answers with text report their tokens, and there is one.
fn tell_tokens(answers: &[&Measured]) -> bool {
    let mut with_text = answers.iter().filter(|one| !one.pieces.is_empty()).peekable();
    with_text.peek().is_some() && with_text.all(|one| !one.tokens.is_empty())
}

/// The longest time between two tokens of an answer, in milliseconds, if all of the server's answers report their tokens.
fn between_tokens(answers: &[&Measured]) -> Option<f64> {
    if !tell_tokens(answers) {
        return None;
    }
    let gaps = answers.iter().flat_map(|one| times_between(&one.tokens));
    Some(Distribution::new(gaps.collect()).percentile(100.0))
}

/// A mix against as many plain streams: runs of both, in turn.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Tokens in a second, of the plain streams and of the mix.
    rounds: Vec<(f64, f64)>,
}

impl Comparison {
    /// The plan of the plain streams.
    pub(super) fn plain(plan: &Plan) -> Plan {
        Plan {
            mix: plan.mix.plain(),
            ..plan.clone()
        }
    }

    pub(super) fn add(&mut self, plain: &Run, mix: &Run) {
        self.rounds.push((plain.tokens_per_s(), mix.tokens_per_s()));
    }

    /// Whether no round has ended.
    pub(super) fn is_empty(&self) -> bool {
        self.rounds.is_empty()
    }

    /// The median over the rounds of the mix's speed relative to plain streams.
    pub(super) fn ratio(&self) -> f64 {
        let ratios = self.rounds.iter().map(|(plain, mix)| mix / plain).collect();
        Distribution::new(ratios).percentile(50.0)
    }

    pub(super) fn line(&self) -> String {
        let rounds: Vec<String> = (self.rounds.iter())
            .map(|(plain, mix)| format!("{mix:.1} / {plain:.1} = {:.3}", mix / plain))
            .collect();
        format!(
            "tokens/s of the mix / of plain streams: {}\nmedian ratio: {:.3}\n",
            rounds.join(", "),
            self.ratio()
        )
    }

    pub(super) fn to_json(&self) -> Value {
        json!({"tokens_per_s": self.rounds.iter().map(|(plain, mix)| json!({"plain": plain, "mix": mix})).collect::<Vec<_>>(),
            "median_ratio": self.ratio()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_names_kinds_and_numbers() {
        let mix: Mix = "plain=2,json,tools=1".parse().unwrap();
        assert_eq!(mix.streams(), [Kind::Plain, Kind::Plain, Kind::Json, Kind::Tools]);
        assert_eq!(mix.plain().streams(), [Kind::Plain; 4]);
        for wrong in [
            "",
            "plain=0",
            "plain=x",
            "image=1",
            "plain=1,plain=2",
            "json=70000",
        ] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_longest_gap_is_told_with_its_kind() {
        let ms = Duration::from_millis;
        let answer = |kind, pieces: &[u64]| {
            let one = Measured {
                pieces: pieces.iter().copied().map(ms).collect(),
                completion_tokens: pieces.len() as u64,
                ..Measured::default()
            };
            (kind, one)
        };
        let run = Run {
            wall: ms(500),
            measured: vec![
                answer(Kind::Plain, &[10, 20, 30]),
                answer(Kind::Json, &[10, 90]),
                answer(Kind::Plain, &[5, 20]),
            ],
            is_whole: true,
        };
        let mix: Mix = "plain=2,json=1".parse().unwrap();
        let figures = run.to_json(&mix);
        assert_eq!(figures["tokens_per_s"], 14.0);
        assert_eq!(figures["kinds"]["plain"]["gap_p99_ms"], 15.0);
        assert_eq!(figures["kinds"]["json"]["longest_gap_ms"], 80.0);
        let table = run.table(&mix);
        assert!(
            table.ends_with("longest stall: 80.00 ms, of json; p99 of the plain streams: 15.00 ms\n"),
            "{table}"
        );
        assert!(
            table.contains("| json | 1 | 2 | 80.00 | 80.00 | 80.00 | ? | ? |"),
            "{table}"
        );
        for figure in ["longest_between_tokens_ms", "tokens_in_longest_gap"] {
            assert!(figures["kinds"]["json"][figure].is_null(), "{figure}");
        }
        let mut comparison = Comparison::default();
        comparison.add(&run, &run);
        assert_eq!(comparison.ratio(), 1.0);
    }

    #[test]
    fn text_that_was_held_back_is_no_stall() {
        let ms = Duration::from_millis;
        let times = |times: &[u64]| times.iter().copied().map(ms).collect();
        let answer = |pieces: &[u64], tokens: &[u64]| Measured {
            pieces: times(pieces),
            tokens: times(tokens),
            completion_tokens: tokens.len() as u64,
            ..Measured::default()
        };
        let run = Run {
            wall: ms(500),
            measured: vec![
                (Kind::Plain, answer(&[10, 20, 31], &[10, 20, 31])),
                // A character of three tokens.
                (Kind::Json, answer(&[10, 20, 51], &[10, 20, 30, 41, 51])),
            ],
            is_whole: true,
        };
        let mix: Mix = "plain=1,json=1".parse().unwrap();
        let json = &run.to_json(&mix)["kinds"]["json"];
        assert_eq!(
            (&json["longest_gap_ms"], &json["tokens_in_longest_gap"]),
            (&json!(31.0), &json!(3))
        );
        assert_eq!(json["longest_between_tokens_ms"], 11.0);
        let table = run.table(&mix);
        assert!(
            table.contains("| json | 1 | 5 | 10.00 | 31.00 | 31.00 | 3 | 11.00 |"),
            "{table}"
        );
        assert!(table.contains("longest stall: 11.00 ms, of"), "{table}");
    }
}
