//! Decisions on the built-in model: numbers against a direct computation, and the same bits however a question is asked.

use std::{cell::Cell, fs, path::Path};

use serde_json::json;
use tokenmill::{
    Conversation, Device, Error, Model,
    decide::{DecideError, DecideParams, Decision, MAX_IMAGES, Question, QuestionKind, State},
    images::image_part,
};
use tokenmill_sched::{Event, ForwardParams, ForwardRows};

const STATE: &str = "Once upon a time there was a little cat named Tom. Tom liked to sit on the red mat near the door. One day a \
                     big dog came into the house and the cat was very sad. The dog wanted to sit on the mat too. Tom said that \
                     they can share the mat, and the two became good friends. They played all day in the sun.";

fn load(n_threads: usize, template: Option<&str>) -> Model {
    let mut options = Model::options().context(512).sequences(4).threads(n_threads);
    options.chat_template = template.map(str::to_owned);
    options.device(Device::Cpu).load("demo").unwrap()
}

fn questions() -> Vec<Question> {
    let mut described = Question::predicate("Is the mat red?");
    described.kind = QuestionKind::Predicate {
        yes: "the mat is red".to_owned(),
        no: "it has another colour".to_owned(),
    };
    vec![
        Question::predicate("Was the cat sad?"),
        Question::choice("Who came?", ["a dog", "a bird", "a man"]),
        Question::score("How happy are they in the end?", ["sad", "calm", "happy"]),
        described,
        Question::choice("", [("cat", "an animal that sits"), ("dog", "")]),
        Question::predicate("Do they share the mat?"),
        Question::score("", ["short", "long"]),
        Question::choice(
            "Where did they play?",
            ["in the sun", "in the rain", "in the house", "nowhere"],
        ),
        Question::predicate("Did Tom leave?"),
        Question::choice("Which animal is small?", ["the cat"]),
    ]
}

/// Probabilities and mass as bits.
fn bits(decision: &Decision) -> Vec<u64> {
    let values = decision.probabilities.iter().chain([&decision.label_mass]);
    values.map(|value| value.to_bits()).collect()
}

fn ask(model: &Model, questions: &[Question]) -> (Vec<Vec<u64>>, usize, usize) {
    let mut answers = (model.start_deciding(STATE, questions, &DecideParams::default())).unwrap();
    let decisions: Vec<_> = answers
        .by_ref()
        .map(|decision| bits(&decision.unwrap()))
        .collect();
    (decisions, answers.n_prompt_tokens(), answers.n_cached_tokens())
}

#[test]
fn an_answer_is_a_softmax_over_the_logits_of_its_labels() {
    let model = load(1, None);
    for (question, asked, labels) in [
        (
            Question::choice("Who came?", [("dog", "a big one"), ("bird", ""), ("man", "")]),
            "Who came?\n\nA: dog - a big one\nB: bird\nC: man\n\nAnswer with the letter of one option, from A to C, and nothing \
             else.",
            &["A", "B", "C"][..],
        ),
        (
            Question::score("How happy?", ["sad", "happy"]),
            "How happy?\n\n0: sad\n1: happy\n\nThe levels are in ascending order. Answer with the number of one level, from 0 to \
             1, and nothing else.",
            &["0", "1"][..],
        ),
        (
            Question::predicate("Was the cat sad?"),
            "Was the cat sad?\n\nAnswer with Yes or No and nothing else.",
            &["Yes", "No"][..],
        ),
    ] {
        let conversation = Conversation::from(format!("{STATE}\n\n{asked}"));
        let prompt = model.words().encode_chat(&conversation).unwrap();
        let logits = model.engine().prefill_batch(&prompt).unwrap();
        let of_labels = labels.iter().map(|label| {
            let tokens = model.words().encode_text(label, false);
            assert_eq!(tokens.len(), 1, "{label}");
            f64::from(logits[tokens[0] as usize])
        });
        let of_labels: Vec<f64> = of_labels.collect();
        let top_label = of_labels.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = of_labels.iter().map(|logit| (logit - top_label).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let top = logits
            .iter()
            .map(|&logit| f64::from(logit))
            .fold(f64::NEG_INFINITY, f64::max);
        let mass: f64 = of_labels.iter().map(|logit| (logit - top).exp()).sum();
        let whole: f64 = logits.iter().map(|&logit| (f64::from(logit) - top).exp()).sum();
        let expected = Decision {
            probabilities: weights.iter().map(|weight| weight / sum).collect(),
            label_mass: mass / whole,
        };
        let found = model.decide(STATE, &[question]).unwrap();
        assert_eq!(
            bits(&found[0]),
            bits(&expected),
            "{found:?}, expected {expected:?}"
        );
    }
}

#[test]
fn a_question_has_the_same_bits_alone_in_company_and_again() {
    let questions = questions();
    let model = load(1, None);
    let (together, n_prompt, n_cached) = ask(&model, &questions);
    assert_eq!(together.len(), questions.len());
    // The state is computed once. It has more than 64 tokens, whose whole pages the other prompts find.
    assert!(n_cached > (questions.len() - 1) * 64, "{n_cached} of {n_prompt}");
    let (again, n_prompt_again, n_cached_again) = ask(&model, &questions);
    assert_eq!((&again, n_prompt_again), (&together, n_prompt));
    assert!(n_cached_again > n_cached, "{n_cached_again} after {n_cached}");
    let other = load(2, None);
    for (question, expected) in questions.iter().zip(&together) {
        // Once in an empty cache, once in a full one.
        other.engine().forget_cache();
        for _ in 0..2 {
            let (alone, ..) = ask(&other, std::slice::from_ref(question));
            assert_eq!(&alone[0], expected, "{question:?}");
        }
    }
    let reversed: Vec<Question> = questions.iter().rev().cloned().collect();
    let (mut backwards, ..) = ask(&other, &reversed);
    backwards.reverse();
    assert_eq!(backwards, together);
}

#[test]
fn more_orders_are_averaged() {
    let model = load(1, None);
    let params = |permutations| DecideParams {
        permutations,
        ..DecideParams::default()
    };
    let ask = |question: &Question, permutations| {
        let answers = model.start_deciding(STATE, std::slice::from_ref(question), &params(permutations));
        let decisions: Result<Vec<_>, _> = answers.unwrap().collect();
        decisions.unwrap().remove(0)
    };
    let forwards = ask(&Question::choice("Who came?", ["a dog", "a bird", "a man"]), 1);
    let backwards = ask(&Question::choice("Who came?", ["a man", "a bird", "a dog"]), 1);
    let both = ask(&Question::choice("Who came?", ["a dog", "a bird", "a man"]), 2);
    for (idx, &found) in both.probabilities.iter().enumerate() {
        let expected = f64::midpoint(forwards.probabilities[idx], backwards.probabilities[2 - idx]);
        assert_eq!(found.to_bits(), expected.to_bits(), "{both:?}");
    }
    assert_ne!(bits(&forwards), bits(&both), "the order matters to this model");
}

#[test]
fn a_template_that_cannot_close_its_reasoning_is_refused() {
    const TURNS: &str = "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}<|end|>{% else %}<|assistant|>ANSWER\
                         {% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>PROMPT{% endif %}";
    let template = |answer: &str, prompt: &str| TURNS.replace("ANSWER", answer).replace("PROMPT", prompt);
    let content = "{{ m.content }}<|end|>";
    let closed = "<think>\n\n</think>\n\n";
    let switched = format!("{{% if enable_thinking %}}<think>\n{{% else %}}{closed}{{% endif %}}");
    let question = [Question::predicate("Was the cat sad?")];
    let check = |answer: &str, prompt: &str, expected: Option<&DecideError>| {
        let model = load(1, Some(&template(answer, prompt)));
        match (model.decide(STATE, &question), expected) {
            (Ok(_), None) => {}
            (Err(Error::Decide(found)), Some(expected)) => assert_eq!(&found, expected),
            (found, _) => panic!("{answer} {prompt}: {found:?}"),
        }
    };
    check(content, "", None);
    check(content, &switched, None);
    check(&format!("{closed}{content}"), &switched, None);
    check(content, "<think>\n", Some(&DecideError::OpenReasoning));
    check(
        &format!("{closed}{content}"),
        "",
        Some(&DecideError::OpenReasoning),
    );
    check(&format!("final: {content}"), "", Some(&DecideError::AnswerHead));
    // A reply that begins with white space has labels that begin with it.
    let spaced = load(1, Some(&template(&format!(" {content}"), "")));
    let plain = load(1, Some(&template(content, "")));
    let choice = [Question::choice("Who came?", ["a dog", "a bird"])];
    let [spaced, plain] = [spaced, plain].map(|model| model.decide(STATE, &choice).unwrap().remove(0));
    assert_ne!(spaced.label_mass.to_bits(), plain.label_mass.to_bits());
    // A text that switches the reasoning on is refused by itself.
    let switch = "{% if '/think' in messages[0].content %}<think>\n{% endif %}";
    let model = load(1, Some(&template(content, switch)));
    assert!(model.decide(STATE, &question).is_ok());
    let thinks = [question[0].clone(), Question::predicate("Was it sad? /think")];
    let refused = model.decide(STATE, &thinks);
    assert!(
        matches!(
            &refused,
            Err(Error::Decide(DecideError::OtherEnd { question_idx: 1 }))
        ),
        "{refused:?}"
    );
}

#[test]
fn options_beyond_the_labels_are_refused() {
    let model = load(1, None);
    let names: Vec<String> = (0..255).map(|idx| format!("option {idx}")).collect();
    let choice = |n: usize| Question::choice("Which?", names[..n].iter().map(String::as_str));
    assert!(model.decide("", &[choice(26)]).is_ok());
    // Most pairs of letters are two tokens here.
    let Err(Error::Decide(error)) = model.decide("", &[choice(2), choice(255)]) else {
        panic!("255 options have labels");
    };
    let DecideError::FewLabels {
        question_idx: 1,
        found: 255,
        n_labels,
    } = error
    else {
        panic!("{error}");
    };
    assert!((26..255).contains(&n_labels), "{n_labels}");
    let long = "cat ".repeat(2000);
    assert!(matches!(model.decide(&long, &[choice(2)]), Err(Error::Engine(_))));
}

#[test]
fn a_request_that_is_gone_encodes_no_further_prompts() {
    let model = load(1, None);
    let (questions, params) = (questions(), DecideParams::default());
    let n_asked = Cell::new(0);
    let begun = model.start_deciding_while(&STATE.into(), &questions, &params, &|| {
        n_asked.set(n_asked.get() + 1);
        n_asked.get() < 3
    });
    assert!(begun.unwrap().is_none());
    assert_eq!(n_asked.get(), 3);
    assert_eq!(model.engine().stats().scheduler.steps, 0);
    let begun = model.start_deciding_while(&STATE.into(), &questions, &params, &|| true);
    assert_eq!(begun.unwrap().unwrap().count(), questions.len());
}

fn vision(path: &str) -> std::path::PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vision");
    Path::new(folder).join(path)
}

fn image(name: &str) -> Vec<u8> {
    fs::read(vision("gemma3").join(name)).unwrap()
}

/// A tiny model that sees, with a template whose answers begin where its prompts end.
fn load_seeing(family: &str) -> Model {
    let [open, close, mark] = match family {
        "gemma3" => ["<start_of_turn>", "<end_of_turn>", "<start_of_image>"],
        _ => [
            "<|im_start|>",
            "<|im_end|>",
            "<|vision_start|><|image_pad|><|vision_end|>",
        ],
    };
    let template = format!(
        "{{% for m in messages %}}{open}{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{{% for part in m.content %}}\
         {{% if part.type == 'image' %}}{mark}{{% else %}}{{{{ part.text }}}}{{% endif %}}{{% endfor %}}{{% endif %}}{close}\
         {{% endfor %}}{{% if add_generation_prompt %}}{open}{{% endif %}}"
    );
    let mut options = Model::options().context(512).sequences(4).threads(1);
    options.chat_template = Some(template);
    options
        .device(Device::Cpu)
        .load(vision(family).join("model.gguf"))
        .unwrap()
}

#[test]
fn images_are_seen_in_their_places_with_the_same_bits() {
    for family in ["gemma3", "qwen2vl", "qwen3vl"] {
        let model = load_seeing(family);
        let show = |name: &str| State::from("a").image(image(name)).text("b");
        let questions = [
            Question::choice("Who?", ["c", "d"]),
            Question::predicate("Is it?"),
            Question::score("How?", ["low", "high"]),
        ];
        let ask = |state: State, questions: &[Question]| -> Vec<Vec<u64>> {
            let decisions = model.decide(state, questions).unwrap();
            decisions.iter().map(bits).collect()
        };
        let together = ask(show("0.png"), &questions);
        assert_eq!(ask(show("0.png"), &questions), together, "{family} again");
        for (question, expected) in questions.iter().zip(&together) {
            model.engine().forget_cache();
            let alone = ask(show("0.png"), std::slice::from_ref(question));
            assert_eq!(&alone[0], expected, "{family}: {question:?}");
        }
        let other = ask(show("1.png"), &questions);
        assert_ne!(other, together, "{family} sees which image it is");
        // Two images, and the same after a text.
        let twice = show("1.png").then(show("0.png"));
        let of_two = ask(twice.clone(), &questions);
        model.engine().forget_cache();
        assert_eq!(ask(twice, &questions), of_two);
        // The first one by hand.
        let asked =
            "b\n\nWho?\n\nA: c\nB: d\n\nAnswer with the letter of one option, from A to B, and nothing else.";
        let content = json!([
            { "type": "text", "text": "a" }, image_part(&image("0.png")), { "type": "text", "text": asked },
        ]);
        let message = json!({ "role": "user", "content": content });
        let prompt = model.words().prompt(&Conversation::from_json(vec![message]));
        let prompt = model.see(prompt.unwrap(), 0).unwrap();
        let params = ForwardParams {
            media: prompt.media.clone(),
            ..ForwardParams::new(ForwardRows::Logits, prompt.tokens.len() - 1)
        };
        let mut logits = Vec::new();
        for event in model.engine().submit_forward(prompt.tokens, params).unwrap() {
            match event {
                Event::Rows(rows) => logits.extend(rows.values),
                Event::Failed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
        let [a, b] = ["A", "B"].map(|label| {
            let tokens = model.words().encode_text(label, false);
            f64::from(logits[tokens[0] as usize])
        });
        let weights = [a, b].map(|logit| (logit - a.max(b)).exp());
        let expected = weights.map(|weight| (weight / (weights[0] + weights[1])).to_bits());
        assert_eq!(together[0][..2], expected, "{family}");
    }
}

#[test]
fn images_that_cannot_be_seen_are_refused() {
    let blind = load(1, None);
    let question = [Question::predicate("Is it?")];
    let shown = |n: usize| (0..n).fold(State::from("a"), |state, _| state.image(image("0.png")));
    let refused = blind.decide(shown(1), &question).unwrap_err();
    assert!(refused.to_string().contains("image"), "{refused}");
    let model = load_seeing("qwen2vl");
    let refused = model.decide(shown(MAX_IMAGES + 1), &question);
    assert!(
        matches!(
            &refused,
            Err(Error::Decide(DecideError::ImageCount { found: 9, maximum: 8 }))
        ),
        "{refused:?}"
    );
    let refused = model.decide(State::from("a").image(&b"no image"[..]), &question);
    assert!(matches!(refused, Err(Error::Image { .. })), "{refused:?}");
}
