//! Results as CSV: a line for each sample, so that a spreadsheet or a data frame can group them as it likes.

use std::collections::BTreeSet;

use crate::results::result::{Param, Report};

impl Report {
    /// As CSV with a header: a line for each sample, and a column for each parameter that any result has.
    ///
    /// # Errors
    /// None in practice: it is written to memory.
    pub fn to_csv(&self) -> Result<Vec<u8>, csv::Error> {
        let params: BTreeSet<&String> = self.results.iter().flat_map(|result| result.params.keys()).collect();
        let mut writer = csv::Writer::from_writer(Vec::new());
        let names = params.iter().map(|name| name.as_str());
        writer
            .write_record(["case", "subject"].into_iter().chain(names).chain(["metric", "unit", "round", "value"]))?;
        for result in &self.results {
            for (round, value) in result.samples.iter().enumerate() {
                let mut line = vec![result.case.clone(), result.subject.clone()];
                line.extend(
                    params.iter().map(|name| result.params.get(*name).map_or_else(String::new, Param::to_string)),
                );
                line.extend([result.metric.clone(), result.unit.clone(), (round + 1).to_string(), value.to_string()]);
                writer.write_record(line)?;
            }
        }
        writer.into_inner().map_err(|error| error.into_error().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::results::result::{CaseResult, Params};

    #[test]
    fn a_line_a_sample_and_a_column_a_parameter() {
        let result = |subject: &str, params: &[(&str, &str)], samples: &[f64]| CaseResult {
            case: "snapshot".to_owned(),
            subject: subject.to_owned(),
            params: params.iter().map(|(name, value)| ((*name).to_owned(), Param::text(value))).collect::<Params>(),
            metric: "pause".to_owned(),
            unit: "ms".to_owned(),
            samples: samples.to_vec(),
            median: samples[0],
        };
        let mut report = Report::new(String::new(), Host::default());
        report.results = vec![
            result("hugefork", &[("backing", "shmem-thp (a, b)"), ("size", "1GiB")], &[0.5, 0.25]),
            result("fork-4k", &[("size", "1GiB")], &[20.0]),
        ];
        let text = String::from_utf8(report.to_csv().unwrap()).unwrap();
        let expected = "case,subject,backing,size,metric,unit,round,value\n\
                        snapshot,hugefork,\"shmem-thp (a, b)\",1GiB,pause,ms,1,0.5\n\
                        snapshot,hugefork,\"shmem-thp (a, b)\",1GiB,pause,ms,2,0.25\n\
                        snapshot,fork-4k,,1GiB,pause,ms,1,20\n";
        assert_eq!(text, expected);
    }
}
