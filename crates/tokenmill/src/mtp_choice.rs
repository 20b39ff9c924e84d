//! Chooses the MTP layer of a model: from the model's own file, from a named file, or from one next to it.
//!
//! Three options of a load decide it. Invariant: a layer that was not requested, and cannot be used, does not
//! prevent the load.

use tokenmill_model::{Model as Network, ModelOptions};
use tokenmill_sched::Speculation;
use tokenmill_text::Tokenizer;

use crate::{Error, LoadOptions, draft::Draft, model_source::ModelSource, mtp::Mtp, mtp_file::MtpFile};

impl LoadOptions {
    /// Returns whether drafts of an MTP layer were requested, as opposed to a layer that is used if there is one.
    pub(crate) fn asks_for_mtp(&self, network: &Network) -> bool {
        match self.speculation {
            Speculation::Mtp { .. } => true,
            Speculation::Auto { .. } => self.mtp.is_some() && self.may_have_mtp(network),
            _ => false,
        }
    }

    /// Whether `network` may use an MTP layer: it generates, and has no draft model.
    fn may_have_mtp(&self, network: &Network) -> bool {
        let is_wished = matches!(
            self.speculation,
            Speculation::Mtp { .. } | Speculation::Auto { .. }
        );
        is_wished && !network.descriptor().is_encoder() && self.draft_of(network).is_none()
    }

    /// The file with the MTP layer of `network`: the named one, or one next to a model without a layer of its own.
    pub(crate) fn mtp_file(
        &self,
        source: &ModelSource,
        network: &Network,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Option<MtpFile>, Error> {
        if !self.may_have_mtp(network)
            || Draft::check_choice(&self.compute, &network.descriptor().shape()).is_err()
        {
            return Ok(None);
        }
        match &self.mtp {
            Some(path) => MtpFile::named(path, network, tokenizer).map(Some),
            // A broken layer in the model's own file is reported or ignored; the files next to the model are
            // not searched.
            None if !matches!(network.nextn(), Ok(None)) => Ok(None),
            None => Ok(MtpFile::beside(source, network, tokenizer)),
        }
    }

    /// The MTP layer of `network`, if the network generates, has no draft model and is on one device.
    pub(crate) fn mtp_of<'n>(
        &self,
        network: &'n Network,
        file: Option<&'n MtpFile>,
    ) -> Result<Option<Mtp<'n>>, Error> {
        if !self.may_have_mtp(network) {
            return Ok(None);
        }
        if Draft::check_choice(&self.compute, &network.descriptor().shape()).is_err() {
            return if self.asks_for_mtp(network) {
                Err(Error::MtpNotWhole)
            } else {
                Ok(None)
            };
        }
        match file {
            Some(file) => Mtp::of_file(file, network).map(Some),
            None => Mtp::find(network, self.speculation),
        }
    }

    /// As [`Self::mtp_of`], less a layer that was not requested and that the CPU has no memory for.
    pub(crate) fn fitting_mtp_of<'n>(
        &self,
        network: &'n Network,
        file: Option<&'n MtpFile>,
        options: &ModelOptions,
    ) -> Result<Option<Mtp<'n>>, Error> {
        let Some(mtp) = self.mtp_of(network, file)? else {
            return Ok(None);
        };
        let checked = self
            .plan(network)
            .and_then(|plan| mtp.check(options, &self.compute, &plan));
        match checked {
            Ok(_) => Ok(Some(mtp)),
            Err(error) if self.asks_for_mtp(network) => Err(error),
            // It was not requested.
            Err(_) => Ok(None),
        }
    }
}
