"""Scoring of translations: BLEU, chrF and TER through sacreBLEU."""
