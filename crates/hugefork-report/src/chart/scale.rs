//! From values to places, and the round values that are worth a tick.

/// How values map to an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Linear,
    /// Of positive values only.
    Log,
}

/// Maps `[low, high]` to `[from, to]`. A value outside goes to the nearer end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// A scale over `low ..= high`, which is widened if it is empty.
    pub(crate) fn new(kind: Kind, low: f64, high: f64, from: f64, to: f64) -> Scale {
        let (low, high) = match kind {
            Kind::Linear if high > low => (low, high),
            Kind::Linear => (low.min(0.0), if high > 0.0 { high } else { 1.0 }),
            // Room at both ends, so that no point lies on the frame.
            Kind::Log => (low.max(f64::MIN_POSITIVE) / 1.25, high.max(f64::MIN_POSITIVE) * 1.25),
        };
        Scale { kind, low, high, from, to }
    }

    pub(crate) fn is_log(&self) -> bool {
        self.kind == Kind::Log
    }

    /// Where `value` is.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let part = match self.kind {
            Kind::Linear => (value - self.low) / (self.high - self.low),
            Kind::Log => (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln(),
        };
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        self.from + part * (self.to - self.from)
    }

    /// Some `wanted` round values on the axis, with their texts.
    pub(crate) fn ticks(&self, wanted: usize) -> Vec<(f64, String)> {
        match self.kind {
            Kind::Linear => linear_ticks(self.low, self.high, wanted),
            Kind::Log => log_ticks(self.low, self.high, wanted),
        }
    }
}

fn linear_ticks(low: f64, high: f64, wanted: usize) -> Vec<(f64, String)> {
    // At most one tick more than wanted.
    let rough = (high - low) / (wanted as f64 + 0.99);
    if !(rough.is_finite() && rough > 0.0) {
        return Vec::new();
    }
    let decade = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|part| part * decade).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * decade);
    let decimals = (-(step.log10() + 1e-9).floor()).clamp(0.0, 9.0) as usize;
    let first = (low / step - 1e-9).ceil();
    (0..=2 * wanted.max(1))
        .map(|index| (first + index as f64) * step)
        .take_while(|value| *value <= high + step * 1e-9)
        // Adding zero turns -0 into 0.
        .map(|value| (value, format!("{:.decimals$}", value + 0.0)))
        .collect()
}

fn log_ticks(low: f64, high: f64, wanted: usize) -> Vec<(f64, String)> {
    let decades = (high / low).log10();
    if !decades.is_finite() {
        return Vec::new();
    }
    let parts: &[f64] = if decades < 1.3 {
        &[1.0, 2.0, 5.0]
    } else if decades < 2.0 {
        &[1.0, 3.0]
    } else {
        &[1.0]
    };
    let stride = (decades / (wanted as f64 + 1.0)).ceil().max(1.0) as i32;
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let exponents = (first..=last).filter(|exponent| exponent.rem_euclid(stride) == 0);
    exponents
        .flat_map(|exponent| parts.iter().map(move |part| (part * 10f64.powi(exponent), exponent)))
        .filter(|(value, _)| (low..=high).contains(value))
        .map(|(value, exponent)| (value, log_text(value, exponent)))
        .collect()
}

fn log_text(value: f64, exponent: i32) -> String {
    match exponent {
        -4..0 => format!("{value:.*}", exponent.unsigned_abs() as usize),
        0..6 => format!("{value:.0}"),
        _ => format!("{value:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(kind: Kind, low: f64, high: f64) -> Vec<String> {
        Scale::new(kind, low, high, 0.0, 1.0).ticks(4).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(texts(Kind::Linear, 0.0, 90.6), ["0", "20", "40", "60", "80"]);
        assert_eq!(texts(Kind::Linear, 0.0, 80.0), ["0", "20", "40", "60", "80"]);
        assert_eq!(texts(Kind::Linear, 0.0, 0.9), ["0.0", "0.2", "0.4", "0.6", "0.8"]);
        assert_eq!(texts(Kind::Linear, -1.0, 1.0), ["-1.0", "-0.5", "0.0", "0.5", "1.0"]);
        assert_eq!(texts(Kind::Log, 0.05, 400.0), ["0.1", "1", "10", "100"]);
        assert_eq!(texts(Kind::Log, 3.0, 30.0), ["5", "10", "20"]);
    }

    #[test]
    fn nothing_is_mapped_outside_or_to_nowhere() {
        let values = [0.0, -1e15, 1e15, 1e-300, 1.0, f64::MIN_POSITIVE];
        for kind in [Kind::Linear, Kind::Log] {
            for low in values {
                for high in values {
                    let scale = Scale::new(kind, low, high, 10.0, 20.0);
                    for value in values {
                        assert!((10.0..=20.0).contains(&scale.at(value)), "{kind:?} {low} {high} {value}");
                    }
                    assert!(scale.ticks(4).len() <= 12, "{kind:?} {low} {high}");
                }
            }
        }
    }
}
