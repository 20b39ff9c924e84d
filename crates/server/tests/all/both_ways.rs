//! Generates answers with reasoning, text and calls in several formats. Each API gives the same answer whole and streamed, also where a
//! limit of tokens cuts it: the same text, reasoning, calls and reason of its end.
//!
//! `TOKENMILL_TEST_SECONDS` and `TOKENMILL_TEST_SEED` try more. The tests of calls in `text` generate more kinds of answers, without a server.

use serde_json::{Value, json};
use tokenmill_testkit::{Random, rounds};

use crate::server::{Setup, TestServer};

const PATHS: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/responses",
    "/api/chat",
];

/// A format of calls.
struct Family {
    /// The part of a template by which the format is recognized.
    sign: &'static str,
    /// A call, in which `@N` stands for the name and `@A` for the arguments in JSON.
    call: &'static str,
    /// Text between two calls.
    between: &'static [&'static str],
    /// Whether text may precede and follow calls.
    has_text: bool,
}

const FAMILIES: [Family; 9] = [
    Family {
        sign: "<tool_call>",
        call: "<tool_call>\n{\"name\": \"@N\", \"arguments\": @A}\n</tool_call>",
        between: &["", "\n", "\n\n"],
        has_text: true,
    },
    Family {
        sign: "[TOOL_CALLS][ARGS]",
        call: "[TOOL_CALLS]@N[ARGS]@A",
        between: &[""],
        has_text: true,
    },
    Family {
        sign: "<｜tool▁call▁begin｜>",
        call: "<｜tool▁call▁begin｜>@N<｜tool▁sep｜>@A<｜tool▁call▁end｜>",
        between: &["", "\n"],
        has_text: true,
    },
    Family {
        sign: "<|tool_call_begin|>",
        call: "<|tool_call_begin|>functions.@N:0<|tool_call_argument_begin|>@A<|tool_call_end|>",
        between: &["", "\n"],
        has_text: true,
    },
    Family {
        sign: "<function=</function>",
        call: "<function=@N>@A</function>",
        between: &["", "\n"],
        has_text: true,
    },
    Family {
        sign: "<TOOLCALL>",
        call: "<TOOLCALL>[{\"name\": \"@N\", \"arguments\": @A}]</TOOLCALL>",
        between: &["", "\n"],
        has_text: true,
    },
    Family {
        sign: "<|START_ACTION|>",
        call: "<|START_ACTION|>[\n{\"tool_name\": \"@N\", \"parameters\": @A}\n]<|END_ACTION|>",
        between: &["", "\n"],
        has_text: true,
    },
    Family {
        sign: "<|python_tag|>",
        call: "{\"name\": \"@N\", \"parameters\": @A}",
        between: &["; ", "\n"],
        has_text: false,
    },
    Family {
        sign: "<function=<parameter=",
        call: "<tool_call>\n<function=@N>\n<parameter=any>\n@A\n</parameter>\n</function>\n</tool_call>",
        between: &["", "\n"],
        has_text: true,
    },
];

/// The text of a model, and its calls.
#[derive(Debug)]
struct Answer {
    text: String,
    calls: Vec<(String, Value)>,
}

fn value(random: &mut Random, depth: usize) -> Value {
    const TEXTS: [&str; 8] = [
        "",
        "a \"b\" c",
        "back\\slash",
        "a/b",
        "日本 é 😀",
        "line\nbreak\ttab",
        "}]",
        "{\"k\": 1}",
    ];
    match random.below(if depth == 0 { 5 } else { 8 }) {
        0 => json!(-0.25),
        1 => json!(random.below(1000)),
        2 => [json!(true), json!(false), Value::Null][random.below(3)].clone(),
        3 | 4 => json!(*random.pick(&TEXTS)),
        5 => (0..random.below(3)).map(|_| value(random, depth - 1)).collect(),
        _ => object(random, depth - 1),
    }
}

fn object(random: &mut Random, depth: usize) -> Value {
    const KEYS: [&str; 5] = ["city", "b c", "name", "arguments", "ü\""];
    let n = random.below(4);
    let members = (0..n).map(|_| ((*random.pick(&KEYS)).to_owned(), value(random, depth)));
    Value::Object(members.collect())
}

fn answer(family: &Family, thinks: bool, random: &mut Random) -> Answer {
    let mut text = String::new();
    if thinks {
        text += "<think>\nHm, \"so\".\n</think>";
        text += *random.pick(&["", "\n", "\n\n"]);
    }
    if family.has_text {
        text += *random.pick(&["", "\n", "I look.\n\n", "See: ", "<b> & {x} [y]\n"]);
    }
    let mut calls = Vec::new();
    let between = *random.pick(family.between);
    for idx in 0..random.below(3) {
        if idx > 0 {
            text += between;
        }
        let name = *random.pick(&["act", "now"]);
        let arguments = object(random, 2);
        let json = if random.below(2) == 0 {
            arguments.to_string()
        } else {
            serde_json::to_string_pretty(&arguments).expect("JSON")
        };
        text += &family.call.replace("@N", name).replace("@A", &json);
        let arguments = if family.call.contains("=any>") {
            json!({ "any": arguments })
        } else {
            arguments
        };
        calls.push((name.to_owned(), arguments));
    }
    if family.has_text {
        text += *random.pick(&["", "\n", " ", "\n\nThat is all."]);
    }
    Answer { text, calls }
}

/// A request in the form of `path`; `n` limits the tokens.
fn body(path: &str, n: usize, is_stream: bool) -> Value {
    let parameters = json!({ "type": "object", "properties": { "any": {} } });
    let messages = json!([{ "role": "user", "content": "Well?" }]);
    let tools = |tool: &dyn Fn(&str) -> Value| -> Value { ["act", "now"].map(tool).into_iter().collect() };
    let function =
        |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
    match path {
        "/v1/messages" => json!({ "messages": messages, "max_tokens": n, "stream": is_stream,
            "tools": tools(&|name| json!({ "name": name, "input_schema": parameters })) }),
        "/v1/responses" => json!({ "input": "Well?", "max_output_tokens": n, "stream": is_stream,
            "tools": tools(&|name| json!({ "type": "function", "name": name, "parameters": parameters })) }),
        "/api/chat" => json!({ "messages": messages, "options": { "num_predict": n }, "stream": is_stream,
            "tools": tools(&function) }),
        _ => json!({ "messages": messages, "max_tokens": n, "stream": is_stream, "tools": tools(&function) }),
    }
}

/// An answer as a client has it in the end.
#[derive(Debug, Default, PartialEq)]
struct Said {
    text: String,
    reasoning: String,
    /// Names and arguments; arguments that are no whole JSON are a text.
    calls: Vec<(String, Value)>,
    end: String,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Reads the arguments of a call.
fn read_arguments(value: &Value) -> Value {
    let whole = value.as_str().and_then(|json| serde_json::from_str(json).ok());
    whole.unwrap_or_else(|| value.clone())
}

impl Said {
    fn calls(&mut self, calls: &Value) {
        for call in calls.as_array().into_iter().flatten() {
            let function = &call["function"];
            self.calls
                .push((text(&function["name"]), read_arguments(&function["arguments"])));
        }
    }

    fn of_whole(path: &str, whole: &Value) -> Self {
        let mut said = Self::default();
        match path {
            "/v1/messages" => {
                for block in whole["content"].as_array().expect("blocks") {
                    said.text += &text(&block["text"]);
                    said.reasoning += &text(&block["thinking"]);
                    if block["type"] == "tool_use" {
                        said.calls.push((text(&block["name"]), block["input"].clone()));
                    }
                }
                said.end = text(&whole["stop_reason"]);
            }
            "/v1/responses" => {
                for item in whole["output"].as_array().expect("items") {
                    let parts: String = (item["content"].as_array().into_iter().flatten())
                        .map(|part| text(&part["text"]))
                        .collect();
                    match item["type"].as_str().expect("a type") {
                        "reasoning" => said.reasoning += &parts,
                        "message" => said.text += &parts,
                        _ => said
                            .calls
                            .push((text(&item["name"]), read_arguments(&item["arguments"]))),
                    }
                }
                said.end = text(&whole["status"]);
            }
            "/api/chat" => {
                let message = &whole["message"];
                (said.text, said.reasoning) = (text(&message["content"]), text(&message["thinking"]));
                said.calls(&message["tool_calls"]);
                said.end = text(&whole["done_reason"]);
            }
            _ => {
                let choice = &whole["choices"][0];
                let message = &choice["message"];
                said.text = text(&message["content"]);
                said.reasoning = text(&message["reasoning_content"]);
                said.calls(&message["tool_calls"]);
                said.end = text(&choice["finish_reason"]);
            }
        }
        said
    }

    /// Adds an event of a stream.
    fn add(&mut self, path: &str, event: &Value) {
        let more = |calls: &mut Vec<(String, Value)>, delta: &Value| {
            let (_, arguments) = calls.last_mut().expect("a call began");
            *arguments = json!(text(arguments) + &text(delta));
        };
        match path {
            "/v1/messages" => {
                let block = &event["content_block"];
                if block["type"] == "tool_use" {
                    self.calls.push((text(&block["name"]), json!("")));
                }
                let delta = &event["delta"];
                self.text += &text(&delta["text"]);
                self.reasoning += &text(&delta["thinking"]);
                if delta["partial_json"].is_string() {
                    more(&mut self.calls, &delta["partial_json"]);
                }
                self.end += &text(&delta["stop_reason"]);
            }
            "/v1/responses" => match event["type"].as_str().expect("a type") {
                "response.output_item.added" if event["item"]["type"] == "function_call" => {
                    self.calls.push((text(&event["item"]["name"]), json!("")));
                }
                "response.output_text.delta" => self.text += &text(&event["delta"]),
                "response.reasoning_text.delta" => self.reasoning += &text(&event["delta"]),
                "response.function_call_arguments.delta" => more(&mut self.calls, &event["delta"]),
                "response.completed" | "response.incomplete" => self.end = text(&event["response"]["status"]),
                _ => {}
            },
            "/api/chat" => {
                let message = &event["message"];
                self.text += &text(&message["content"]);
                self.reasoning += &text(&message["thinking"]);
                self.calls(&message["tool_calls"]);
                self.end += &text(&event["done_reason"]);
            }
            _ => {
                let choice = &event["choices"][0];
                let delta = &choice["delta"];
                self.text += &text(&delta["content"]);
                self.reasoning += &text(&delta["reasoning_content"]);
                for call in delta["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    if function["name"].is_string() {
                        self.calls.push((text(&function["name"]), json!("")));
                    }
                    more(&mut self.calls, &function["arguments"]);
                }
                self.end += &text(&choice["finish_reason"]);
            }
        }
    }
}

/// Asks for an answer whole and streamed, and returns the whole one if both are the same.
async fn both(server: &TestServer, path: &str, n: usize, what: &str) -> Said {
    let mut whole = Said::of_whole(path, &server.post_ok(path, &body(path, n, false)).await);
    let reply = server.post(path, &body(path, n, true)).await;
    assert_eq!(reply.status, 200, "{what}: {}", reply.text());
    let mut streamed = Said::default();
    for line in reply.text().lines() {
        let data = line.strip_prefix("data: ").unwrap_or(line);
        if data.starts_with('{') {
            streamed.add(path, &serde_json::from_str(data).expect("an event"));
        }
    }
    for (_, arguments) in &mut streamed.calls {
        *arguments = read_arguments(arguments);
    }
    // A message's block has the members that came whole, its events the text so far.
    if path == "/v1/messages"
        && let (Some(whole), Some(streamed)) = (whole.calls.last_mut(), streamed.calls.last())
        && streamed.1.is_string()
    {
        assert!(whole.1.is_object(), "{what}");
        whole.1 = streamed.1.clone();
    }
    assert_eq!(streamed, whole, "{what}");
    whole
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_model_says_is_the_same_whole_and_streamed() {
    let letters = |text: &str| text.split_whitespace().collect::<String>();
    for seed in rounds("answers whole and streamed", 3) {
        let mut random = Random::new(seed);
        let family = random.pick(&FAMILIES);
        let thinks = random.below(2) == 0;
        let answer = answer(family, thinks, &mut random);
        let tags = if thinks { "<think></think>" } else { "" };
        let template = format!(
            "{{% for m in messages %}}{{{{ m.content }}}};{{% endfor %}}{{% if false %}}{}{tags}{{% endif %}}",
            family.sign
        );
        let setup = Setup {
            template: Some(template),
            says: Some(answer.text.clone()),
            ..Setup::default()
        };
        let Some(server) = TestServer::start_with(setup).await else {
            return;
        };
        let mut texts = Vec::new();
        for path in PATHS {
            let what = format!("seed {seed}: {path}, {answer:?}");
            let all = both(&server, path, 1500, &what).await;
            assert_eq!(all.calls, answer.calls, "{what}");
            let (with_calls, without) = match path {
                "/v1/messages" => ("tool_use", "end_turn"),
                "/v1/responses" => ("completed", "completed"),
                "/api/chat" => ("stop", "stop"),
                _ => ("tool_calls", "stop"),
            };
            let expected = if all.calls.is_empty() { without } else { with_calls };
            assert_eq!(all.end, expected, "{what}");
            texts.push((letters(&all.text), letters(&all.reasoning)));
            let n = 1 + random.below(answer.text.len().clamp(1, 120));
            both(&server, path, n, &format!("{what}, {n} tokens")).await;
        }
        assert!(
            texts.iter().all(|text| *text == texts[0]),
            "seed {seed}: {texts:?}"
        );
        server.run.abort();
    }
}
