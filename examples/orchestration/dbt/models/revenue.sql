{{ config(materialized='table') }}
select customer, sum(total) as revenue, '{{ var("resolved") }}' as complete_up_to
from {{ source('copy', 'orders') }}
group by customer
