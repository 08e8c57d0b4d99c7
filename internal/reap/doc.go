// Package reap waits for processes whose groups end with them.
package reap
