// Package channel moves messages between the ranks of a job through channels that
// are declared once and started again and again.
package channel
