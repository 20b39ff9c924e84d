//! Reads back calls that published chat templates write into a conversation's history.
//!
//! A model was trained to write calls as its template renders them in an assistant's message. So the text
//! between the prompt and the end of the message is parsed, whole and cut anywhere, and must give the
//! rendered call.

use std::{collections::BTreeMap, fs, sync::Arc};

use serde_json::{Value, json};
use tokenmill_testkit::Comparisons;
use tokenmill_text::{
    calls::{Opening, Part, ReplyFormat, ReplyParser, ToolSet},
    template::{ChatTemplate, RenderOptions},
};

/// Templates whose calls cannot be read back, each with its reason. The list is exact.
const UNREADABLE: &[(&str, &str)] = &[
    (
        "CohereForAI-c4ai-command-r-plus-tool_use",
        "needs the type of an argument's schema written out",
    ),
    ("Kimi-K2-Instruct", "changes a list, which the sandbox refuses"),
    ("Kimi-K2-Thinking", "changes a list, which the sandbox refuses"),
    ("LFM2.5-Instruct", "writes no calls into the history"),
    (
        "MiniMax-M3",
        "arguments are tags named for them, which are not read yet",
    ),
    (
        "fireworks-ai-llama-3-firefunction-v2",
        "reads variables of its own",
    ),
    ("google-gemma-2-2b-it", "knows no tools"),
    (
        "ibm-granite-granite-3.3-2B-Instruct",
        "writes no calls into the history",
    ),
    ("llama-cpp-deepseek-r1", "fails where there are tools"),
    ("llama-cpp-rwkv-world", "knows no tools"),
    ("microsoft-Phi-3.5-mini-instruct", "knows no tools"),
    (
        "muse-glimmer",
        "addresses messages to tools, which is not read yet",
    ),
    (
        "glimmer_chat_template",
        "addresses messages to tools, which is not read yet",
    ),
];

/// The family of each template.
const FAMILIES: &[(&str, &str)] = &[
    ("Apertus-8B-Instruct", "apertus"),
    ("Apriel-1.6-15b-Thinker-fixed", "apriel"),
    ("Bielik-11B-v3.0-Instruct", "hermes"),
    ("Cohere2MoE", "command-r7b"),
    ("CohereForAI-c4ai-command-r-plus-tool_use", "command-r"),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command-r7b"),
    ("GLM-4.7-Flash", "glm"),
    ("GigaChat3-10B-A1.8B", "gigachat"),
    ("GigaChat3.1-10B-A1.8B", "gigachat-3.1"),
    ("Kimi-K2-Instruct", "kimi-k2"),
    ("Kimi-K2-Thinking", "kimi-k2"),
    ("Kimi-K3", "kimi-k3"),
    ("LFM2.5-8B-A1B", "lfm2"),
    ("LFM2.5-Instruct", "lfm2"),
    ("MiMo-VL", "hermes"),
    ("MiniMax-M2", "minimax"),
    ("MiniMax-M3", "hermes"),
    ("Mistral-Small-3.2-24B-Instruct-2506", "mistral"),
    ("NVIDIA-Nemotron-Nano-v2", "nemotron"),
    ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes"),
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes"),
    ("Qwen-Qwen2.5-7B-Instruct", "hermes"),
    ("Qwen-Qwen3-0.6B", "hermes"),
    ("Qwen-Qwen3-Coder-30B-A3B-Instruct", "qwen3-coder"),
    ("Qwen3-Coder", "qwen3-coder"),
    ("Reka-Edge", "hermes"),
    ("Spark2.5", "glm"),
    ("StepFun3.5-Flash", "qwen3-coder"),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-v3"),
    ("deepseek-ai-DeepSeek-V3.1", "deepseek-v3.1"),
    ("deepseek-ai-DeepSeek-V3.2", "deepseek-v3.2"),
    ("deepseek-ai-DeepSeek-V4", "deepseek-v4"),
    ("fireworks-ai-llama-3-firefunction-v2", "firefunction"),
    ("gemma4_31b_chat_template", "gemma"),
    ("gemma4_e2b_chat_template", "gemma"),
    ("glimmer_chat_template", "generic"),
    ("google-gemma-2-2b-it", "generic"),
    ("google-gemma-4-31B-it", "gemma"),
    ("ibm-granite-granite-3.3-2B-Instruct", "granite"),
    ("ibm-granite-granite-4.0", "hermes"),
    ("inclusionai-ling-3.0-flash", "glm"),
    ("laguna_v2_chat_template", "glm"),
    ("laguna_v8_chat_template", "glm"),
    ("llama-cpp-deepseek-r1", "deepseek-v3"),
    ("llama-cpp-rwkv-world", "generic"),
    ("meetkai-functionary-medium-v3.2", "functionary"),
    ("meta-llama-Llama-3.1-8B-Instruct", "llama"),
    ("meta-llama-Llama-3.2-3B-Instruct", "llama"),
    ("microsoft-Phi-3.5-mini-instruct", "generic"),
    ("mistralai-Ministral-3-14B-Reasoning-2512", "mistral"),
    ("mistralai-Mistral-Nemo-Instruct-2407", "mistral-v3"),
    ("muse-glimmer", "generic"),
    ("nemotron35_chat_template", "qwen3-coder"),
    ("nemotron3nano_chat_template", "qwen3-coder"),
    ("openai-gpt-oss-120b", "harmony"),
    ("openbmb-MiniCPM5-1B", "minicpm"),
    ("poolside-Laguna-XS-2.1", "glm"),
    ("poolside-Laguna-XS.2", "glm"),
    ("qwen38_chat_template", "qwen3-coder"),
    ("synthetic-deepseek-v3.2-dsml", "deepseek-v3.2"),
    ("tencent-Hy3", "hy3"),
    ("unsloth-mistral-Devstral-Small-2507", "mistral"),
    ("upstage-Solar-Open-100B", "solar"),
];

/// Texts that end a turn; as tokens they end the generation, and are not part of the answer.
const ENDS: &[&str] = &[
    "<|eom_id|>",
    "<|eot_id|>",
    "<|im_end|>",
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
    "<｜hy_eos:opensource｜>",
    "<|tool_response>",
    "<|role_end|>",
    "<|observation|>",
    "<|end_of_msg|>",
    "<turn|>",
    "[e~[",
    "<sep>",
    "</assistant>",
    "<SPECIAL_12>",
    "\n<|end|>",
    "<|start|>functions",
    "<|eot|>",
];

fn names(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.split(".jinja").next().unwrap_or(name).to_owned()
}

/// Returns the assistant's message with a call, as `template` writes it after its prompt, and the prompt's
/// end.
fn written_call(template: &ChatTemplate, context: &Value, arguments: &Value) -> Option<(String, String)> {
    let render = |messages: Value, opens: bool| {
        let mut context = context.clone();
        context["messages"] = messages;
        context["add_generation_prompt"] = opens.into();
        template.render(&context, &RenderOptions::default()).ok()
    };
    let user = json!({"role": "user", "content": "Print it."});
    let function = json!({"name": "ipython", "arguments": arguments});
    let call = json!({"id": "call_1___", "type": "function", "function": function});
    let answer = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    let prompt = render(json!([user]), true)?;
    let called = render(json!([user, answer]), false)?;
    let mut common = prompt
        .bytes()
        .zip(called.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    if common < prompt.len() {
        // Two different marks may begin alike.
        let is_in_mark = |at: usize| {
            let before = &called[..at];
            let open = before.rfind('<').filter(|open| at - open < 40);
            open.is_some_and(|open| !before[open..].contains('>'))
        };
        while !called.is_char_boundary(common) || is_in_mark(common) {
            common -= 1;
        }
    }
    let written = (ENDS.iter())
        .filter_map(|end| called[common..].find(end))
        .min()
        .map_or(&called[common..], |end| &called[common..common + end])
        .trim_end();
    Some((called[..common].to_owned(), written.to_owned()))
}

fn parts(format: &ReplyFormat, tail: &str, written: &str, cuts: &[usize]) -> Vec<Part> {
    let tools = Arc::new(ToolSet::new([(
        "ipython".to_owned(),
        json!({"type": "object", "properties": {"code": {"type": "string"}, "n": {"type": "integer"}}}),
    )]));
    let opening = Opening {
        is_reasoning: format.opens_reasoning(tail),
        is_head: format.opens_head(tail),
    };
    let mut parser = ReplyParser::new(format, tools, opening);
    let mut joined: Vec<Part> = Vec::new();
    let mut start = 0;
    let ends = cuts
        .iter()
        .copied()
        .filter(|&cut| written.is_char_boundary(cut))
        .chain([written.len()]);
    let mut pieces = Vec::new();
    for end in ends {
        pieces.extend(parser.push(&written[start..end]));
        start = end;
    }
    pieces.extend(parser.finish());
    assert_eq!(
        pieces.iter().map(|piece| piece.source_bytes).sum::<usize>(),
        written.len()
    );
    for piece in pieces {
        match (joined.last_mut(), piece.part) {
            (_, Part::Markup) => {}
            (Some(Part::Text(all)), Part::Text(more)) => all.push_str(&more),
            (Some(Part::Arguments { delta: all, .. }), Part::Arguments { delta, .. }) => all.push_str(&delta),
            (_, part) => joined.push(part),
        }
    }
    joined
}

/// Returns the calls of an answer, and its text.
fn calls(parts: &[Part]) -> (Vec<(String, Value)>, String) {
    let (mut calls, mut text) = (Vec::new(), String::new());
    let mut arguments = String::new();
    for part in parts {
        match part {
            Part::CallStart { name, .. } => {
                calls.push((name.clone(), Value::Null));
                arguments.clear();
            }
            Part::Arguments { delta, .. } => arguments.push_str(delta),
            Part::CallEnd { call_idx } => {
                calls[*call_idx].1 = serde_json::from_str(&arguments).unwrap_or(Value::Null);
            }
            Part::Text(more) => text.push_str(more),
            Part::CallBroken { .. } | Part::CallCut { .. } | Part::Reasoning(_) | Part::Markup => {}
        }
    }
    (calls, text)
}

#[test]
fn published_templates_write_calls_that_are_read_back() {
    let mut comparisons = Comparisons::of("tool calls");
    let mut found_families = BTreeMap::new();
    let mut unreadable = Vec::new();
    let Some(folder) = comparisons.find("templates") else {
        return;
    };
    let mut contexts: BTreeMap<String, Value> = BTreeMap::new();
    for line in fs::read_to_string(folder.join("goldens.jsonl")).unwrap().lines() {
        let golden: Value = serde_json::from_str(line).unwrap();
        if golden["case"] == "tool_use" {
            contexts.insert(
                golden["template"].as_str().unwrap().to_owned(),
                golden["context"].clone(),
            );
        }
    }
    let arguments = json!({"code": "print(\"Hello, <World>!\")\nx = [1]", "n": 3});
    for (path, mut context) in contexts {
        let source = fs::read_to_string(folder.join(&path)).unwrap();
        let Ok(template) = ChatTemplate::new(&source) else {
            continue;
        };
        let format = ReplyFormat::of_template(&source);
        found_families.insert(names(&path), format.name());
        context["tools"] = json!([{"type": "function", "function": {"name": "ipython", "description": "Runs code.",
            "parameters": {"type": "object", "properties": {"code": {"type": "string", "description": "It."}, "n": {"type": "integer", "description": "Times."}}}}}]);
        let as_text = Value::from(arguments.to_string());
        let is_read = [&arguments, &as_text].into_iter().find_map(|form| {
            let (tail, written) = written_call(&template, &context, form)?;
            let whole = parts(&format, &tail, &written, &[]);
            let everywhere: Vec<usize> = (1..written.len()).collect();
            assert_eq!(
                parts(&format, &tail, &written, &everywhere),
                whole,
                "{path} {written:?}"
            );
            for cut in everywhere {
                assert_eq!(
                    parts(&format, &tail, &written, &[cut]),
                    whole,
                    "{path} {written:?} at {cut}"
                );
            }
            let (calls, text) = calls(&whole);
            if calls == [("ipython".to_owned(), arguments.clone())] && text.trim().is_empty() {
                comparisons.compared(1);
                return Some(());
            }
            let tail = &tail[tail.len() - tail.chars().rev().take(30).map(char::len_utf8).sum::<usize>()..];
            println!(
                "{path} ({}): {tail:?} | {written:?} gives {whole:?}",
                format.name()
            );
            None
        });
        if is_read.is_none() {
            unreadable.push(names(&path));
        }
    }
    let families: Vec<(&str, &str)> = found_families
        .iter()
        .map(|(path, name)| (path.as_str(), *name))
        .collect();
    assert_eq!(
        unreadable,
        UNREADABLE.iter().map(|(path, _)| *path).collect::<Vec<_>>()
    );
    assert_eq!(families, FAMILIES);
}
