//! Quantiles of measured values.

/// The value below which this share of all values lies, from 0 to 1: 0.5 is the median. Sorts the values.
pub fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index into values that are in memory"
    )]
    let index = (values.len() as f64 * part) as usize;
    let last = values.len().saturating_sub(1);
    values.get(index.min(last)).copied().unwrap_or_default()
}
