//! `/set` and `/show`: the settings of a chat.
//!
//! The turns only use them. Invariant: a refused value changes nothing.

use serde_json::Value;
use tokenmill::Model;
use tokenmill_server::near_names;
use tokenmill_text::template::ChatTemplate;

use super::{Chat, completion::SETTINGS};
use crate::{
    failure::Failure,
    numbers::Seed,
    output,
    visible::{visible, visible_lines},
    vision::without_bytes,
};

impl Chat {
    /// Changes a setting, or a variable of the template.
    pub(super) fn set(&mut self, name: &str, value: &str, model: &Model) -> Result<(), Failure> {
        let wrong =
            |expected: &str| Failure::usage(format!("`{value}` is not a value for {name}: {expected}"));
        let number = || value.parse::<f32>().map_err(|_| wrong("expected a number"));
        let mut params = self.params.clone();
        match name {
            "system" => self.system = (!value.is_empty()).then(|| value.to_owned()),
            "temp" => params.temperature = number()?,
            "top_k" => {
                let whole = value.parse();
                params.top_k = whole.map_err(|_| wrong("expected a whole number, 0 or more"))?;
            }
            "top_p" => params.top_p = number()?,
            "min_p" => params.min_p = number()?,
            "repeat_penalty" => params.repeat_penalty = number()?,
            "presence_penalty" => params.presence_penalty = number()?,
            "frequency_penalty" => params.frequency_penalty = number()?,
            "seed" => match value
                .parse::<Seed>()
                .map_err(|expected: String| wrong(&expected))?
            {
                Seed::Fixed(seed) => {
                    params.seed = seed;
                    self.has_fixed_seed = true;
                }
                Seed::Random => self.has_fixed_seed = false,
            },
            "n_predict" => {
                self.n_predict = value.parse().map_err(|expected: String| wrong(&expected))?;
            }
            _ if model
                .words()
                .template()
                .is_some_and(|template| template.names(name)) =>
            {
                let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
                self.variables.insert(name.to_owned(), value);
            }
            _ => return Err(no_setting(name)),
        }
        params
            .validate(model.words().tokenizer().n_vocab())
            .map_err(|error| Failure::usage(error.to_string()))?;
        self.params = params;
        Ok(())
    }

    /// Shows the settings, or another part of the conversation.
    pub(super) fn show(&self, what: &str, model: &Model) -> Result<(), Failure> {
        let params = &self.params;
        match what {
            "" | "settings" => output::print_wrapped(&format!(
                "model             {}\ncontext           {} tokens\nsystem            {}\ntemp              {}\n\
                 top_k             {}\ntop_p             {}\nmin_p             {}\nrepeat_penalty    {}\n\
                 presence_penalty  {}\nfrequency_penalty {}\nseed              {}{}\nn_predict         {}\n",
                visible(model.name()),
                model.n_ctx(),
                self.system.as_deref().unwrap_or("-"),
                params.temperature,
                params.top_k,
                params.top_p,
                params.min_p,
                params.repeat_penalty,
                params.presence_penalty,
                params.frequency_penalty,
                params.seed,
                if self.has_fixed_seed { "" } else { ", another for each answer" },
                self.n_predict,
            ))
            .and_then(|()| {
                let variables: Vec<String> = (self.variables.iter())
                    .map(|(name, value)| format!("{name:17} {value}"))
                    .collect();
                variables.iter().try_for_each(|line| output::print_sentence(line))
            }),
            "messages" => output::print_json(&Value::from(without_bytes(self.transcript()))),
            "tools" => match &self.tools {
                Some(tools) => output::print_json(tools),
                None => output::print_sentence("no tools are offered; `--tools FILE` at the start offers some"),
            },
            "template" => output::print_line(&visible_lines(model.words().template().map_or("", ChatTemplate::source))),
            _ => Err(Failure::usage(format!("nothing called `{what}` can be shown"))
                .hint("/show, /show messages, /show tools or /show template")),
        }
    }
}

/// Refuses a name that neither a setting nor a variable of the model's template has.
fn no_setting(name: &str) -> Failure {
    let near = near_names(name, SETTINGS.into_iter());
    let message = format!("there is no setting `{name}`, and this model's template has no such variable");
    Failure::usage(message).hint(if near.is_empty() {
        "/show lists the settings".to_owned()
    } else {
        format!("near it: {}", near.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_is_told_the_settings_near_it() {
        for (name, expected) in [
            ("temperature", "(hint: near it: temp)"),
            ("top-k", "(hint: near it: top_k, top_p)"),
            ("sytem", "(hint: near it: system)"),
            ("enable_thinking", "(hint: /show lists the settings)"),
        ] {
            let line = no_setting(name).line();
            assert!(line.ends_with(expected), "{line}");
            assert!(
                line.starts_with(&format!(
                    "error: there is no setting `{name}`, and this model's template"
                )),
                "{line}"
            );
        }
    }
}
