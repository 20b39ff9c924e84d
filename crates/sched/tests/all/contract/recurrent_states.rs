//! Models with recurrent layers: their states are where the plan says, and snapshots save computing a conversation again.

use super::*;

fn recurrent(n_pages: usize, n_states: usize, n_running: usize) -> Engine {
    let limits = ExecutorLimits {
        n_states,
        ..limits(n_pages)
    };
    let config = EngineConfig {
        max_running: n_running,
        ..EngineConfig::default()
    };
    Engine::start(FakeExecutor::new(limits), config)
}

fn of_recurrent(prompt: &[u32], params: &GenerateParams) -> Vec<u32> {
    let limits = ExecutorLimits {
        n_states: 1,
        ..limits(0)
    };
    let max_tokens = params.max_tokens.expect("tests say how many");
    let (generated, _) = reference(&limits, prompt, &params.sampling, max_tokens, &[]);
    [prompt, &generated].concat()
}

#[test]
fn a_conversation_of_20_turns_computes_no_token_again_but_those_of_its_last_pages() {
    let engine = recurrent(200, 4, 1);
    let mut tokens = prompt(1, 1, 0, 50);
    let mut n_computed: usize = 0;
    for turn in 0..20 {
        let params = greedy(5 + turn * 7 % 40);
        let n_before = tokens.len();
        let output = engine.generate(&tokens, &params).unwrap();
        assert_eq!(output.tokens, of_recurrent(&tokens, &params), "turn {turn}");
        if turn > 0 {
            // The whole pages of tokens computed before this turn's message. The last sampled token was never
            // an input.
            let n_held = n_computed / 16 * 16;
            let again = n_held.saturating_sub(output.usage.cached_tokens);
            assert!(
                again <= 16,
                "turn {turn}: {again} of {n_held} tokens are computed again"
            );
        }
        n_computed = output.tokens.len() - 1;
        assert!(n_before < output.tokens.len());
        tokens = output.tokens;
        tokens.extend(prompt(2, turn as u64, 0, 3 + turn * 5 % 23));
    }
}

#[test]
fn prompts_that_share_a_beginning_continue_from_one_snapshot() {
    let engine = recurrent(100, 8, 3);
    let params = greedy(6);
    let first = prompt(3, 1, 70, 90);
    engine.generate(&first, &params).unwrap();
    let again = engine.generate(&first, &params).unwrap();
    assert_eq!(again.usage.cached_tokens, 80);
    let prompts: Vec<Vec<u32>> = (0..6).map(|own| [&first[..], &[own, own]].concat()).collect();
    for (prompt, output) in prompts
        .iter()
        .zip(engine.batch_generate(&prompts, &params).unwrap())
    {
        let output = output.unwrap();
        assert_eq!(output.tokens, of_recurrent(prompt, &params));
        assert_eq!(output.usage.cached_tokens, 80);
    }
    assert_no_page_is_held(&engine);
}

#[test]
fn sequences_wait_for_a_slot_and_samples_of_one_prompt_do_not_share_a_state() {
    let engine = recurrent(100, 2, 8);
    let params = greedy(20);
    let prompts: Vec<Vec<u32>> = (0..9)
        .map(|own| prompt(own, own, 0, 10 + own as usize * 7))
        .collect();
    for (prompt, output) in prompts
        .iter()
        .zip(engine.batch_generate(&prompts, &params).unwrap())
    {
        assert_eq!(output.unwrap().tokens, of_recurrent(prompt, &params));
    }
    assert_no_page_is_held(&engine);
}
