//! `/set` and `/show`: the settings of a chat.
//!
//! Separate from the turns, which only use them. Invariant: a value that is refused changes nothing.

use serde_json::Value;
use tokenmill::Model;
use tokenmill_text::template::ChatTemplate;

use super::Chat;
use crate::{
    failure::Failure,
    output,
    visible::{visible, visible_lines},
    vision::without_bytes,
};

impl Chat {
    /// Changes a setting, or a variable of the template.
    pub(super) fn set(&mut self, name: &str, value: &str, model: &Model) -> Result<(), Failure> {
        let wrong = || Failure::usage(format!("`{value}` is not a value for {name}"));
        let mut params = self.params.clone();
        match name {
            "system" => self.system = (!value.is_empty()).then(|| value.to_owned()),
            "temp" => params.temperature = value.parse().map_err(|_| wrong())?,
            "top_k" => params.top_k = value.parse().map_err(|_| wrong())?,
            "top_p" => params.top_p = value.parse().map_err(|_| wrong())?,
            "min_p" => params.min_p = value.parse().map_err(|_| wrong())?,
            "repeat_penalty" => params.repeat_penalty = value.parse().map_err(|_| wrong())?,
            "presence_penalty" => params.presence_penalty = value.parse().map_err(|_| wrong())?,
            "frequency_penalty" => params.frequency_penalty = value.parse().map_err(|_| wrong())?,
            "seed" => {
                params.seed = value.parse().map_err(|_| wrong())?;
                self.has_fixed_seed = true;
            }
            "n_predict" => self.n_predict = value.parse().map_err(|_| wrong())?,
            _ if model
                .words()
                .template()
                .is_some_and(|template| template.names(name)) =>
            {
                let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
                self.variables.insert(name.to_owned(), value);
            }
            _ => {
                return Err(Failure::usage(format!("there is no setting `{name}`"))
                    .hint("/show lists the settings; variables of the template can be set too"));
            }
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
            "tools" => output::print_json(self.tools.as_ref().unwrap_or(&Value::Null)),
            "template" => output::print_line(&visible_lines(model.words().template().map_or("", ChatTemplate::source))),
            _ => Err(Failure::usage(format!("there is nothing called `{what}` to show"))
                .hint("/show, /show messages, /show tools or /show template")),
        }
    }
}
